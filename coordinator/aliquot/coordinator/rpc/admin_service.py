"""AdminService: pools, tenants, queues, prices and the ledger. Thin: what may be declared, the core decides."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.invoice import FOR_EVER_MS, balance_micro, make_invoice
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.commands.queries import DryRun
from aliquot.coordinator.rpc.caller import caller, on_behalf
from aliquot.coordinator.rpc.scopes import declared_names, may_declare, may_withdraw, seen_by
from aliquot.coordinator.rpc.service import Service
from aliquot.coordinator.wire import administration as messages
from aliquot.coordinator.wire import tenancy
from aliquot.coordinator.wire.calls import unary
from aliquot.v1 import admin_pb2 as pb
from aliquot.v1 import admin_pb2_grpc

T = TypeVar("T")


class AdminService(Service, admin_pb2_grpc.AdminServiceServicer):
    """See the module's docstring."""

    async def _carry_out(self, command: c.Command[T], *, dry_run: bool) -> T:
        """A dry run changes nothing, so it is a query and not a command."""
        return await (self._writer.query(DryRun(command)) if dry_run else self._writer.submit(command))

    # -- declaring

    @unary
    async def Apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        """Everything is checked before anything is declared."""
        command = tenancy.read_apply(request)
        may_declare(caller(), command, self._view.books.tenants, self._view.books.bound_above)
        done = on_behalf(declared_names(command), command)
        outcome = await self._carry_out(done, dry_run=command.dry_run)
        return pb.ApplyResponse(changed=dict(outcome.changed), unchanged=outcome.unchanged)

    @unary
    async def Withdraw(self, request: pb.WithdrawRequest) -> pb.WithdrawResponse:
        """Remove a declaration that nothing refers to."""
        if request.kind not in [kind.value for kind in c.Declared]:
            raise InvalidFieldError("kind", f"{request.kind[:32]!r} can't be withdrawn", hint="pool, tenant or queue")
        version = request.version if request.HasField("version") else c.ANY_VERSION
        command = c.Withdraw(c.Declared(request.kind), request.name, version)
        may_withdraw(caller(), command, self._view.books.tenants, self._view.books.bound_above)
        await self._writer.submit(on_behalf(f"{request.kind} {request.name}", command))
        return pb.WithdrawResponse()

    # -- looking

    @unary
    async def GetTenancy(self, request: pb.GetTenancyRequest) -> pb.Tenancy:
        """Everything declared, with what is held and waits."""
        return messages.tenancy_message(seen_by(caller(), self._view.tenancy(self._clock.now_ms())))

    # -- maintenance windows

    @unary
    async def DeclareMaintenance(self, request: pb.DeclareMaintenanceRequest) -> pb.DeclareMaintenanceResponse:
        """Declare a window; answers with the nodes that it covers now."""
        spec = messages.read_window(request.window)
        await self._writer.submit(on_behalf(spec.name, c.DeclareMaintenance(spec)))
        (view,) = [view for view in self._view.windows() if view.window.spec.name == spec.name] or (None,)
        return pb.DeclareMaintenanceResponse(maintenance=messages.window_message(view) if view else None)

    @unary
    async def EndMaintenance(self, request: pb.EndMaintenanceRequest) -> pb.EndMaintenanceResponse:
        """End or cancel a window."""
        await self._writer.submit(on_behalf(request.name, c.EndMaintenance(request.name)))
        return pb.EndMaintenanceResponse()

    @unary
    async def ListMaintenance(self, request: pb.ListMaintenanceRequest) -> pb.ListMaintenanceResponse:
        """All maintenance windows."""
        return pb.ListMaintenanceResponse(windows=map(messages.window_message, self._view.windows()))

    # -- what failed

    @unary
    async def RetrySetAside(self, request: pb.RetrySetAsideRequest) -> pb.RetrySetAsideResponse:
        """List what was set aside, and try it again where that is asked for."""
        command = c.RetrySetAside(request.subject, request.carry_out)
        outcome = await self._writer.submit(on_behalf(request.subject, command))
        return pb.RetrySetAsideResponse(found=map(messages.set_aside_message, outcome.found))

    @unary
    async def Forgive(self, request: pb.ForgiveRequest) -> pb.ForgiveResponse:
        """Hold no lease that ended as `OVER_LIMIT` against a tenant any more."""
        command = c.Forgive(names.validate_tenant(request.tenant))
        forgiven = await self._writer.submit(on_behalf(f"tenant {command.tenant}", command))
        return pb.ForgiveResponse(offences=forgiven)

    # -- the ledger

    @unary
    async def GetInvoice(self, request: pb.GetInvoiceRequest) -> pb.Invoice:
        """Extracted from the durable books at one moment, then computed in a thread."""
        tenant = names.validate_tenant(request.tenant)
        caller().must(Action.READ_BILLS, tenant)
        extract = self._view.extract(tenant, request.from_ms, request.to_ms, self._clock.now_ms())
        invoice = await asyncio.to_thread(make_invoice, extract)
        return messages.invoice_message(invoice, await self._balance_micro(tenant))

    @unary
    async def PostCredit(self, request: pb.PostCreditRequest) -> pb.PostCreditResponse:
        """Post a payment; answers with the balance afterwards."""
        tenant = names.validate_tenant(request.tenant)
        note = names.validate_text(request.note, "note", limits.MAX_REASON_CHARS)
        command = c.PostCredit(tenant, request.money_micro, request.reference, note)
        await self._writer.submit(on_behalf(tenant, command))
        return pb.PostCreditResponse(balance_micro=str(await self._balance_micro(tenant)))

    async def _balance_micro(self, tenant: str) -> int | None:
        extract = self._view.extract(tenant, 0, FOR_EVER_MS, self._clock.now_ms())
        return await asyncio.to_thread(balance_micro, extract)

    @unary
    async def CorrectUsage(self, request: pb.CorrectUsageRequest) -> pb.CorrectUsageResponse:
        """Add an entry that corrects an earlier one."""
        command = c.CorrectUsage(
            tenant=names.validate_tenant(request.tenant),
            queue=request.queue and names.validate_queue(request.queue),
            model=names.validate_text(request.model, "model", limits.MAX_MODEL_CHARS),
            share_milli_ms=request.share_milli_ms or "0",
            memory_byte_ms=request.memory_byte_ms or "0",
            reference=request.reference,
            note=names.validate_text(request.note, "note", limits.MAX_REASON_CHARS),
        )
        await self._writer.submit(on_behalf(command.tenant, command))
        return pb.CorrectUsageResponse()

    @unary
    async def CloseBooks(self, request: pb.CloseBooksRequest) -> pb.CloseBooksResponse:
        """Replace the entries of past days by sums."""
        await self._writer.submit(on_behalf("", c.CloseBooks(request.up_to_ms)))
        return pb.CloseBooksResponse()

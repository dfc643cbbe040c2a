"""AdminService: pools, tenants, queues, prices and the ledger. Thin: what may be declared, the core decides. By whom,
and what of it a caller sees, stands at the end: what is its tenant's, or below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.invoice import FOR_EVER_MS, balance_micro, make_invoice
from aliquot.coordinator.core.books.roles import Action, covers
from aliquot.coordinator.core.books.tenancy.ceilings import check_within
from aliquot.coordinator.core.books.tenancy.specs import Tenant
from aliquot.coordinator.core.commands.queries import DryRun
from aliquot.coordinator.reading.books import TenancyView
from aliquot.coordinator.rpc.caller import Caller, caller, on_behalf
from aliquot.coordinator.rpc.service import Service
from aliquot.coordinator.wire import administration as messages
from aliquot.coordinator.wire import tenancy
from aliquot.coordinator.wire.calls import unary
from aliquot.v1 import admin_pb2 as pb
from aliquot.v1 import admin_pb2_grpc

T = TypeVar("T")
_NAMED = 3


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
        _may_declare(caller(), command, self._view.books.tenants, self._view.books.bound_above)
        done = on_behalf(_declared_names(command), command)
        outcome = await self._carry_out(done, dry_run=command.dry_run)
        return pb.ApplyResponse(changed=dict(outcome.changed), unchanged=outcome.unchanged)

    @unary
    async def Withdraw(self, request: pb.WithdrawRequest) -> pb.WithdrawResponse:
        """Remove a declaration that nothing refers to."""
        if request.kind not in [kind.value for kind in c.Declared]:
            raise InvalidFieldError("kind", f"{request.kind[:32]!r} can't be withdrawn", hint="pool, tenant or queue")
        version = request.version if request.HasField("version") else c.ANY_VERSION
        command = c.Withdraw(c.Declared(request.kind), request.name, version)
        _may_withdraw(caller(), command, self._view.books.tenants, self._view.books.bound_above)
        await self._writer.submit(on_behalf(f"{request.kind} {request.name}", command))
        return pb.WithdrawResponse()

    # -- looking

    @unary
    async def GetTenancy(self, request: pb.GetTenancyRequest) -> pb.Tenancy:
        """Everything declared, with what is held and waits."""
        return messages.tenancy_message(_seen_by(caller(), self._view.tenancy(self._clock.now_ms())))

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


_BoundAbove = Callable[[str], str]
"""See `core.tenancy.limits.bound_above`."""


def _may_declare(who: Caller, command: c.Apply, declared: Mapping[str, Tenant], bound_above: _BoundAbove) -> None:
    """A manager declares tenants below its own declared one, within their ceilings and as far as nothing is limited or
    guaranteed there; all else is the administrator's.

    Raises RoleMissing and InvalidField.
    """
    if command.pools or command.queues or command.rates is not None:
        who.must(Action.DECLARE)
    for number, (spec, _) in enumerate(command.tenants):
        _may_change(who, spec.name, declared, bound_above)
        if spec.quota.guarantees:  # it is taken from what everybody shares
            who.must(Action.DECLARE)
        if not who.may(Action.DECLARE):
            check_within(declared, spec, f"tenants[{number}]")


def _may_withdraw(who: Caller, command: c.Withdraw, declared: Mapping[str, Tenant], bound_above: _BoundAbove) -> None:
    """The same of taking a declaration back. Raises RoleMissing."""
    if command.kind is c.Declared.TENANT:
        _may_change(who, command.name, declared, bound_above)
    else:
        who.must(Action.DECLARE)


def _may_change(who: Caller, tenant: str, declared: Mapping[str, Tenant], bound_above: _BoundAbove) -> None:
    parent, _, _ = tenant.rpartition("/")
    # The first declaration shuts out everybody who has none, and the end of the last lets all in: no manager says that.
    known = any(covers(above, parent) for above in declared)
    if parent and known and not bound_above(tenant) and who.may(Action.DECLARE_BELOW, parent):
        return
    who.must(Action.DECLARE)


def _declared_names(command: c.Apply) -> str:
    """For the record."""
    names = [
        *(f"pool {spec.name}" for spec, _ in command.pools),
        *(f"tenant {spec.name}" for spec, _ in command.tenants),
        *(f"queue {spec.name}" for spec, _ in command.queues),
        *(["rates"] if command.rates is not None else []),
    ]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _seen_by(who: Caller, view: TenancyView) -> TenancyView:
    """Without other tenants: those of the caller, those above them, their alerts, and what is declared for all."""
    if who.sees_all:
        return view
    scopes = [grant.scope for grant in who.grants]
    tenants = tuple(
        each
        for each in view.tenants
        if who.may(Action.READ_LEASES, each.spec.name) or any(covers(each.spec.name, scope) for scope in scopes)
    )
    names = {each.spec.name for each in tenants}
    alerts = tuple(text for name, text in view.tenant_alerts if name in names)
    return replace(view, tenants=tenants, alerts=alerts, holds=())

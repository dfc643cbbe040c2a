"""`Pool.admin`: tenants, queues, pools, prices, maintenance and the ledger."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.client import admin
from aliquot.client._administration import ADMIN, declaration
from aliquot.client._async.calling import AsyncCalls
from aliquot.client._messages import read, write
from aliquot.client._methods import POOL
from aliquot.client.health import Health, Incident, UnknownSlice
from aliquot.v1 import admin_pb2, pool_pb2


class AsyncAdmin(AsyncCalls):
    """What administrators do. Each method is one call.

    Any of them raises `Unavailable` and `DeadlineExceeded`, and `InvalidRequest` for values out of their range.
    """

    async def apply(
        self, declared: admin.Declarations, *, over: admin.Tenancy | None = None, dry_run: bool = False
    ) -> admin.Applied:
        """Declare all of it, or nothing.

        `over` is what was read before: raises `Conflict` if somebody has since changed what would be replaced. None:
        replace whatever is there. Raises `InvalidRequest` for invalid declarations, `QuotaExceeded` if guarantees
        are more than the pool has.
        """
        request = declaration(declared, over)
        request.dry_run = dry_run
        return read(await self._caller.call(ADMIN["Apply"], request, self._timeout_s), admin.Applied)

    async def withdraw(self, kind: str, name: str, *, version: int | None = None) -> None:
        """Withdraw a declaration of this kind (pool, tenant, queue); `version` must be its present one (None: any).

        Raises `TenantNotFound` or `QueueNotFound`, `InUse` while it is in use, `Conflict` for another version.
        """
        await self._send(ADMIN["Withdraw"], kind=kind, name=name, version=version)

    async def tenancy(self) -> admin.Tenancy:
        """Everything declared, what is held, what waits, and what needs attention."""
        return await self._ask(admin.Tenancy, ADMIN["GetTenancy"])

    async def declare_maintenance(self, window: admin.MaintenanceWindow) -> admin.Maintenance:
        """Declare a maintenance window, for once or every week. Declaring the same again changes nothing.

        Raises `NameTaken` if another window has this name, `InvalidRequest` for times or a zone that can't be read.
        """
        asked = write(window, admin_pb2.MaintenanceWindow())
        answer = await self._send(ADMIN["DeclareMaintenance"], window=asked)
        return read(answer.maintenance, admin.Maintenance)

    async def end_maintenance(self, name: str) -> None:
        """Withdraw a window; nodes that only it closed are open again. Raises `MaintenanceNotFound`."""
        await self._send(ADMIN["EndMaintenance"], name=name)

    async def maintenance(self) -> tuple[admin.Maintenance, ...]:
        """All windows, the next one first."""
        return tuple(read(each, admin.Maintenance) for each in (await self._send(ADMIN["ListMaintenance"])).windows)

    async def health(self, incident: int = 0) -> Health:
        """What is wrong with cards: incidents that are open, and the latest that are over.

        With a number: only that one, with its story. Raises `IncidentNotFound` if it is not known (any more).
        """
        return await self._ask(Health, POOL["GetHealth"], incident=incident)

    async def settle_slices(self, node: str, slice_ids: Iterable[str] = ()) -> tuple[UnknownSlice, ...]:
        """End slices of a node that its agent holds and the books do not know (`Health.unknown_slices`).

        None named: all of them. Each has a grace of 30 s. Returns those that are told to end. Raises `NodeNotFound`,
        and `InvalidRequest` for one that is not quarantined there.
        """
        answer = await self._send(POOL["SettleSlices"], node_id=node, slice_ids=slice_ids)
        return tuple(read(each, UnknownSlice) for each in answer.slices)

    async def quarantine_device(self, uuid: str, *, reason: str = "", drain: bool = False) -> Incident | None:
        """Take a card out of service until somebody returns it; `drain` also ends its leases, each with its grace.

        `uuid` is that of a device, or of the card that it is a part of. Returns the incident that covers it now.
        Raises `DeviceNotFound`.
        """
        return _incident_of(await self._send(POOL["QuarantineDevice"], uuid=uuid, reason=reason, drain=drain))

    async def verify_device(self, uuid: str, *, reason: str = "") -> Incident | None:
        """Have a card tested once nothing holds it; well, it returns by itself.

        Raises `DeviceNotFound`, and `InUse` where it can't be tested as it is.
        """
        return _incident_of(await self._send(POOL["VerifyDevice"], uuid=uuid, reason=reason))

    async def return_device(self, uuid: str, *, reason: str = "", overrule: bool = False) -> Incident | None:
        """Take a card back into service; None: no incident covers it any more.

        `overrule` takes it back although its agent says that it is not well; that counts again when the agent says
        something else. Raises `DeviceNotFound`, and without `overrule` `StillUnwell` while its signs are bad.
        """
        return _incident_of(await self._send(POOL["ReturnDevice"], uuid=uuid, reason=reason, overrule=overrule))

    async def invoice(self, tenant: str, *, from_ms: int, to_ms: int) -> admin.Invoice:
        """What a tenant owes for [from_ms, to_ms), milliseconds since the Unix epoch.

        Raises `PeriodClosed` if it begins or ends within a closed day (UTC).
        """
        return await self._ask(admin.Invoice, ADMIN["GetInvoice"], tenant=tenant, from_ms=from_ms, to_ms=to_ms)

    async def post_credit(self, tenant: str, money_micro: int, *, reference: str, note: str = "") -> int:
        """Post money, once per reference. Returns the balance afterwards; both are millionths of the currency.

        Raises `IdempotencyMismatch` if the reference was used for something else.
        """
        answer = await self._send(
            ADMIN["PostCredit"], tenant=tenant, money_micro=money_micro, reference=reference, note=note
        )
        return int(answer.balance_micro or 0)

    async def correct_usage(
        self,
        tenant: str,
        *,
        queue: str,
        model: str,
        share_milli_ms: int = 0,
        memory_byte_ms: int = 0,
        reference: str,
        note: str = "",
    ) -> None:
        """Correct a wrong charge with a new entry of today; negative amounts reduce the charge.

        `queue` and `model` are those of the invoice's line: today's price of the model holds. A GPU-hour is
        3,600,000,000 `share_milli_ms`. A reference is booked once. Raises `IdempotencyMismatch` if it was used for
        another correction.
        """
        # Amounts are decimal strings in the contract, because they know no bound.
        await self._send(
            ADMIN["CorrectUsage"],
            tenant=tenant,
            queue=queue,
            model=model,
            share_milli_ms=str(share_milli_ms),
            memory_byte_ms=str(memory_byte_ms),
            reference=reference,
            note=note,
        )

    async def close_books(self, up_to_ms: int) -> None:
        """Sum up the entries before this midnight (UTC, in milliseconds), so that they take less memory.

        In that time invoices must then begin and end at midnight, and nothing more is booked (`PeriodClosed`).
        """
        await self._send(ADMIN["CloseBooks"], up_to_ms=up_to_ms)

    async def set_aside(self, subject: str = "") -> tuple[admin.SetAside, ...]:
        """The work that is left alone because deciding on it failed too often; the one that failed first comes first.

        `subject` is the lease, pool, tenant or window that it is about; empty: all of it.
        """
        return await self._set_aside(subject, retry=False)

    async def retry_set_aside(self, subject: str = "") -> tuple[admin.SetAside, ...]:
        """Have that work tried again. Returns what it is; what fails again is set aside again."""
        return await self._set_aside(subject, retry=True)

    async def _set_aside(self, subject: str, *, retry: bool) -> tuple[admin.SetAside, ...]:
        answer = await self._send(ADMIN["RetrySetAside"], subject=subject, carry_out=retry)
        return tuple(read(found, admin.SetAside) for found in answer.found)

    async def forgive(self, tenant: str) -> int:
        """Leases of this tenant that ended as `OVER_LIMIT` no longer count against it. Returns how many did, or could
        have.
        """
        return int((await self._send(ADMIN["Forgive"], tenant=tenant)).offences)


def _incident_of(answer: pool_pb2.DeviceCareResponse) -> Incident | None:
    return read(answer.incident, Incident) if answer.HasField("incident") else None

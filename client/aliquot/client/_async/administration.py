"""`Pool.admin`: tenants, queues, pools, prices, maintenance and the ledger."""

from __future__ import annotations

from aliquot.client import _administration as administration
from aliquot.client import admin
from aliquot.client._async.runner import AsyncRunner
from aliquot.client._flow import Context
from aliquot.client.health import Health, Incident


class AsyncAdmin:
    """What administrators do. Each method is one call.

    Any of them raises `Unavailable` and `DeadlineExceeded`, and `InvalidRequest` for values out of their range.
    """

    def __init__(self, context: Context, timeout_s: float, runner: AsyncRunner) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._run = runner.run

    async def apply(
        self, declared: admin.Declarations, *, over: admin.Tenancy | None = None, dry_run: bool = False
    ) -> admin.Applied:
        """Declare all of it, or nothing.

        `over` is what was read before: raises `Conflict` if somebody has since changed what would be replaced. None:
        replace whatever is there. Raises `InvalidRequest` for invalid declarations, `QuotaExceeded` if guarantees
        are more than the pool has.
        """
        return await self._run(administration.apply(self._context, declared, over, self._timeout_s, dry_run=dry_run))

    async def withdraw(self, kind: str, name: str, *, version: int | None = None) -> None:
        """Withdraw a declaration of this kind (pool, tenant, queue); `version` must be its present one (None: any).

        Raises `TenantNotFound` or `QueueNotFound`, `InUse` while it is in use, `Conflict` for another version.
        """
        await self._run(administration.withdraw(self._context, kind, name, version, self._timeout_s))

    async def tenancy(self) -> admin.Tenancy:
        """Everything declared, what is held, what waits, and what needs attention."""
        return await self._run(administration.tenancy(self._context, self._timeout_s))

    async def declare_maintenance(self, window: admin.MaintenanceWindow) -> admin.Maintenance:
        """Declare a maintenance window, for once or every week. Declaring the same again changes nothing.

        Raises `NameTaken` if another window has this name, `InvalidRequest` for times or a zone that can't be read.
        """
        return await self._run(administration.declare_maintenance(self._context, window, self._timeout_s))

    async def end_maintenance(self, name: str) -> None:
        """Withdraw a window; nodes that only it closed are open again. Raises `MaintenanceNotFound`."""
        await self._run(administration.end_maintenance(self._context, name, self._timeout_s))

    async def maintenance(self) -> tuple[admin.Maintenance, ...]:
        """All windows, the next one first."""
        return await self._run(administration.maintenance(self._context, self._timeout_s))

    async def health(self, incident: int = 0) -> Health:
        """What is wrong with cards: incidents that are open, and the latest that are over.

        With a number: only that one, with its story. Raises `IncidentNotFound` if it is not known (any more).
        """
        return await self._run(administration.health(self._context, incident, self._timeout_s))

    async def quarantine_device(self, uuid: str, *, reason: str = "", drain: bool = False) -> Incident | None:
        """Take a card out of service until somebody returns it; `drain` also ends its leases, each with its grace.

        `uuid` is that of a device, or of the card that it is a part of. Returns the incident that covers it now.
        Raises `DeviceNotFound`.
        """
        flow = administration.quarantine_device(self._context, uuid, reason, self._timeout_s, drain=drain)
        return await self._run(flow)

    async def verify_device(self, uuid: str, *, reason: str = "") -> Incident | None:
        """Have a card tested once nothing holds it; well, it returns by itself.

        Raises `DeviceNotFound`, and `InUse` where it can't be tested as it is.
        """
        return await self._run(administration.verify_device(self._context, uuid, reason, self._timeout_s))

    async def return_device(self, uuid: str, *, reason: str = "") -> Incident | None:
        """Take a card back into service; None: no incident covers it any more.

        Raises `DeviceNotFound`, and `StillUnwell` while its signs are bad.
        """
        return await self._run(administration.return_device(self._context, uuid, reason, self._timeout_s))

    async def invoice(self, tenant: str, *, from_ms: int, to_ms: int) -> admin.Invoice:
        """What a tenant owes for [from_ms, to_ms), milliseconds since the Unix epoch.

        Raises `PeriodClosed` if it begins or ends within a closed day (UTC).
        """
        return await self._run(administration.invoice(self._context, tenant, from_ms, to_ms, self._timeout_s))

    async def post_credit(self, tenant: str, money_micro: int, *, reference: str, note: str = "") -> int:
        """Post money, once per reference. Returns the balance afterwards; both are millionths of the currency.

        Raises `IdempotencyMismatch` if the reference was used for something else.
        """
        return await self._run(
            administration.post_credit(self._context, tenant, money_micro, reference, note, self._timeout_s)
        )

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
        flow = administration.correct_usage(
            self._context,
            self._timeout_s,
            tenant=tenant,
            queue=queue,
            model=model,
            share_milli_ms=share_milli_ms,
            memory_byte_ms=memory_byte_ms,
            reference=reference,
            note=note,
        )
        await self._run(flow)

    async def close_books(self, up_to_ms: int) -> None:
        """Sum up the entries before this midnight (UTC, in milliseconds), so that they take less memory.

        In that time invoices must then begin and end at midnight, and nothing more is booked (`PeriodClosed`).
        """
        await self._run(administration.close_books(self._context, up_to_ms, self._timeout_s))

    async def set_aside(self, subject: str = "") -> tuple[admin.SetAside, ...]:
        """The work that is left alone because deciding on it failed too often; the one that failed first comes first.

        `subject` is the lease, pool, tenant or window that it is about; empty: all of it.
        """
        return await self._run(administration.set_aside(self._context, subject, self._timeout_s, retry=False))

    async def retry_set_aside(self, subject: str = "") -> tuple[admin.SetAside, ...]:
        """Have that work tried again. Returns what it is; what fails again is set aside again."""
        return await self._run(administration.set_aside(self._context, subject, self._timeout_s, retry=True))

    async def forgive(self, tenant: str) -> int:
        """Leases of this tenant that ended as `OVER_LIMIT` no longer count against it. Returns how many did, or could
        have.
        """
        return await self._run(administration.forgive(self._context, tenant, self._timeout_s))

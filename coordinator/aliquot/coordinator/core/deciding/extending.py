"""A lease's time limit is made longer, as far as nobody else counts on its end."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.coordinator.core.books.holds import HoldKind
from aliquot.coordinator.core.books.leases.facts import LeaseExtended
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.maintenance import Phase, shown
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.commands import ExtendLease
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import refuse_held_back, suspended
from aliquot.coordinator.core.values.errors import ExtensionRefused, InvalidField, LeaseEndedError, QuotaExceeded
from aliquot.coordinator.core.values.fact import by_kind


def extend(known: Known, command: ExtendLease, now_ms: int) -> Decision[None]:
    """Let a lease have this time limit. The same limit again changes nothing, so it can be sent again.

    Raises LeaseNotFound, LeaseEndedError, InvalidField, QuotaExceeded, TenantHeldBack, ExtensionRefused.
    """
    lease = known.lease(command.lease_id)
    limit_ms = lease.request.time_limit_ms
    if lease.ended or lease.ending:
        raise LeaseEndedError(f"{lease.lease_id} has ended, or is about to: ask for another one")
    if not limit_ms:
        raise InvalidField("time_limit_s", "the lease has no time limit: it stands until it is released")
    if command.time_limit_ms == limit_ms:
        return NOTHING
    if command.time_limit_ms < limit_ms:
        detail = f"{command.time_limit_ms // 1000} s is less than the {limit_ms // 1000} s that it has"
        raise InvalidField("time_limit_s", detail, hint="release it to end it sooner")
    _look_at_queue(known.tenancy, lease, command.time_limit_ms)
    refuse_held_back(known, lease.request, now_ms)
    over = suspended(known, lease.request, now_ms)
    if over is not None:
        raise QuotaExceeded(over.subject, over.detail, "what runs goes on until its time limit")
    if lease.granted_ms and not lease.waiting:
        _look_at_promises(known, lease, command.time_limit_ms)
    return Decision((LeaseExtended(now_ms, lease.lease_id, command.time_limit_ms, command.reason, command.by),), None)


def extends_to_ms(tenancy: Tenancy, lease: Lease) -> int | None:
    """How long its queue lets time limits become: what the queue says, else the first one above that says anything;
    None: none does.
    """
    return tenancy.said(lease.request.tenant, lease.request.queue, lambda spec: spec.extend_to_ms)


def _look_at_queue(tenancy: Tenancy, lease: Lease, wanted_ms: int) -> None:
    most_ms = extends_to_ms(tenancy, lease)
    if most_ms is None or wanted_ms <= most_ms:
        return
    queue = tenancy.queue_of(lease.request.tenant, lease.request.queue)
    what = f"lets time limits become at most {most_ms // 1000} s" if most_ms else "extends no time limits"
    raise ExtensionRefused(f"queue {queue} {what}", lease.granted_ms + most_ms if lease.granted_ms else 0)


def _look_at_promises(known: Known, lease: Lease, wanted_ms: int) -> None:
    """Who was promised what it holds counts on its present end; whom it keeps waiting already loses nothing by this."""
    ends_ms = lease.granted_ms + lease.request.time_limit_ms
    gone_ms = lease.granted_ms + wanted_ms + lease.request.grace_ms
    kept = [(at_ms, why) for at_ms, why in _promises(known, lease) if ends_ms <= at_ms < gone_ms]
    if not kept:
        return
    at_ms, why = min(kept)
    until_ms = max(ends_ms, at_ms - lease.request.grace_ms)
    left_s = (until_ms - lease.granted_ms) // 1000
    more = f"a time limit of at most {left_s} s" if until_ms > ends_ms else "no later end than it has"
    raise ExtensionRefused(f"{why}; {more} leaves that as it is", until_ms)


def _promises(known: Known, lease: Lease) -> Iterator[tuple[int, str]]:
    """(when, why) others are to have something of what it holds."""
    held = {piece.plan.device_uuid for piece in lease.holding}
    for hold in known.holds.values():
        if hold.kind is HoldKind.RESERVATION and hold.start_ms and not held.isdisjoint(hold.device_uuids):
            yield hold.start_ms, f"a lease that waits is to start there at {shown(hold.start_ms)}"
    for node_id in dict.fromkeys(piece.plan.node_id for piece in lease.holding):
        closure = known.closed.get(node_id)
        if closure is not None and closure.phase is Phase.CLOSING:
            name = known.inventory.node(node_id).spec.name
            yield closure.starts_ms, f"node {name} is maintained from {shown(closure.starts_ms)}"


DECIDES = Decides(commands=by_kind(extend))

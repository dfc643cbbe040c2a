"""Reserve: keep devices for the first request of a line that does not fit, once it has waited long enough."""

from __future__ import annotations

from aliquot.coordinator.core.books.holds import Hold, HoldCreated, HoldKind
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen, Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.queueing.slowdown import slack_ms
from aliquot.coordinator.core.rules.patience import is_late
from aliquot.coordinator.core.rules.preemption.leaving import expect
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand

RESERVATIONS_MAX = 8
"""In the whole pool."""


KEPT_PERMILLE = 20
"""Of all devices, so many are kept for the late requests of one queue that orders by slowdown; or those of the first.
"""


def reserve(known: Known, admission: AdmissionPass, lease: Lease, demand: Demand, now_ms: int) -> list[Fact]:
    """Keep devices for the first request of a line that does not fit, once it has waited long enough.

    A queue that orders by rank has one line; one that orders its tenants by what they hold has a line for each. Under
    `slowdown` single devices are kept only for who is due: they come free all the time, and large requests need it
    more. Of those there, several have devices kept as long as these are a small part of the pool: a short one need not
    wait until a long one has started.
    """
    line = _line_of(known, lease)
    if line in admission.blocked:
        return []
    queue = known.tenancy.queue_spec(line[0])
    by_due = queue.policy is QueuePolicy.SLOWDOWN
    late, kept = is_late(known, lease, now_ms), lease.lease_id in known.holds
    if by_due and demand.count * demand.gang_size == 1:
        late = late and now_ms >= lease.created_ms + slack_ms(queue, lease.request)
    if (late and not kept) or not by_due:  # under `slowdown`, those who are due sooner may have come just now
        admission.blocked[line] = None  # one search that comes to nothing is enough for a pass
    if not late or kept:
        return []
    reserved = [hold for hold in known.holds.values() if hold.kind is HoldKind.RESERVATION]
    of_line = [hold for hold in reserved if _line_of(known, known.leases[hold.owner]) == line]
    if len(reserved) >= RESERVATIONS_MAX or (of_line and not (by_due and _may_keep(known, of_line, demand))):
        return []
    found = moving.place_to_clear(known, lease, demand, now_ms) or expect(known, lease, demand, now_ms)
    if found is None:
        return []
    if by_due:
        del admission.blocked[line]
    fact = HoldCreated(
        at_ms=now_ms,
        owner=lease.lease_id,
        kind=HoldKind.RESERVATION,
        placement=found.placement,
        expires_ms=now_ms + known.config.reservation_ms,
        start_ms=found.start_ms,
    )
    return [fact]


def _may_keep(known: Known, reserved: list[Hold], demand: Demand) -> bool:
    """Whether so many devices more may be kept beside those that are."""
    kept = sum(len(hold.device_uuids) for hold in reserved) + demand.count * demand.gang_size
    return kept * 1000 <= len(known.devices) * KEPT_PERMILLE


def _line_of(known: Known, lease: Lease) -> tuple[str, str]:
    """(queue, tenant) of the line that a lease stands in; no tenant where the queue has a single line."""
    request = lease.request
    queue = known.tenancy.queue_of(request.tenant, request.queue)
    by_rank = known.tenancy.queue_spec(queue).policy in (QueuePolicy.FIFO, QueuePolicy.PRIORITY, QueuePolicy.SLOWDOWN)
    return queue, "" if by_rank else request.tenant


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """One search for where it could start soonest, for each line of a pass."""
    return Attempt(reserve(known, waiting.admission, waiting.lease, waiting.demand, waiting.now_ms))


def foresee(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Foreseen | None:
    """When enough of what runs will have ended by its time limits, or what else must be given back. Guesses are for
    deciding: told, they would grow with every minute that nothing is given back.
    """
    found = expect(known, lease, demand, now_ms, guessing=False)
    if found is None:
        return None
    return Foreseen((), 0, found.endless) if found.endless else Foreseen((), found.start_ms)

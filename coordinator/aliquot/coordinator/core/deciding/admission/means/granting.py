"""Grant: it fits, and gets the place that was found; or a later request of its line fits that, unlike its head, ends
before maintenance begins.
"""

from __future__ import annotations

from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import granted, offer_before, sterner

CLOSED_ATTEMPTS = 4
"""A look at nodes that close counts as so many attempts of a turn: a millisecond or two in a large pool."""
BEHIND_MAX = 64
"""Requests of a line that are checked."""


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """Costs nothing more: the place was found when it was offered."""
    assert waiting.found.placement is not None
    given_up = holding.give_up_of(known, waiting.lease.lease_id, waiting.now_ms, "the lease was granted elsewhere")
    return waiting.grant(waiting.found.placement, given_up)


def attempt_behind(known: Known, waiting: Waiting) -> Attempt:
    """Only where windows close nodes; a placement for each of `BEHIND_MAX` requests at most."""
    place = known.lines.place_of(waiting.head.lease_id)
    if not known.closed or place is None:
        return Attempt([], cost=CLOSED_ATTEMPTS if known.closed else 1)
    head, now_ms = waiting.head, waiting.now_ms
    for _, lease_id in known.lines.queues[place.queue][place.tenant].lines[head.line][:BEHIND_MAX]:
        lease = known.leases[lease_id]
        demand = sterner(known, lease.request, head.line.demand, now_ms)
        placement = offer_before(known, lease.request, demand, now_ms, preempted_at_ms=lease.preempted_at_ms)
        if placement is not None:
            given_up = holding.give_up_of(known, lease_id, now_ms, "the lease was granted elsewhere")
            return Attempt([*given_up, granted(lease_id, lease.lease_epoch + 1, placement, now_ms)], again=True)
    return Attempt([], cost=CLOSED_ATTEMPTS)

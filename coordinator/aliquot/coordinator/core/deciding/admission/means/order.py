"""The order in which means of admission are tried. It is policy, and written down here and nowhere else.

What takes from nobody comes first; then what people agreed to lose (an idle share, an elastic lease's surplus, what is
kept for later requests); then what ends or moves others; last, waiting with devices kept. The table in
docs/tenancy.md is compared with it by a test.
"""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding.admission.means import (
    backfilling,
    borrowing,
    giving_back,
    granting,
    moving,
    opening,
    preempting,
    reclaiming,
    reserving,
    yielding,
)
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen, Means, Situation, Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.types import Demand

GIVE_BACK, PREEMPT, MOVE, RESERVE = "give back", "preempt", "move others", "reserve"

MEANS = (
    # Who has come later, but would use more of what has become free, is asked before it is broken up.
    Means("yield", Situation.FITS, yielding.attempt),
    Means("grant", Situation.FITS, granting.attempt),
    # A limit is in the way, not a lack of devices: elastic leases below it shrink before any lease there ends.
    Means("give back below a limit", Situation.OVER_LIMIT, giving_back.attempt_below_limits),
    Means("reclaim below a limit", Situation.OVER_LIMIT, reclaiming.attempt),
    # These take nothing from anybody that is not given back in time.
    Means("borrow", Situation.NO_ROOM, borrowing.attempt),
    Means("backfill", Situation.NO_ROOM, backfilling.attempt),
    Means("grant one behind", Situation.NO_ROOM, granting.attempt_behind),
    Means("open what is kept", Situation.NO_ROOM, opening.attempt),
    # Shrinking costs a lease some of its members, preemption all of them, so it comes first.
    Means(GIVE_BACK, Situation.NO_ROOM, giving_back.attempt, giving_back.foresee),
    Means(PREEMPT, Situation.NO_ROOM, preempting.attempt, preempting.foresee),
    # Moving restarts leases that are no less worth than this one, so only those who are late have it done for them.
    Means(MOVE, Situation.NO_ROOM, moving.attempt, moving.foresee),
    Means(RESERVE, Situation.NO_ROOM, reserving.attempt, reserving.foresee),
)


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """The first of the means that serves a request or makes room for it.

    It costs as much of the turn as the dearest search that was made: most rest after they have found nothing, so that
    two dear ones in one attempt are rare.
    """
    cost, situation = 1, waiting.situation
    for means in MEANS:
        if means.situation is situation:
            tried = means.attempt(known, waiting)
            if tried.facts or tried.again:
                return tried
            cost = max(cost, tried.cost)
    return Attempt([], cost=cost)


def foresee(known: Known, lease: Lease, demand: Demand, now_ms: int, *names: str) -> Foreseen | None:
    """What the first of these means, in the order of the list, would come to; None: none would help."""
    for means in MEANS:
        if means.name in names and means.foresee is not None:
            found = means.foresee(known, lease, demand, now_ms)
            if found is not None:
                return found
    return None

"""Move others: leases that say they may be moved go elsewhere, and the place they leave is kept."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen, Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.types import Demand


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """A plan takes milliseconds; it rests for a second after one that came to nothing, and moves have a budget."""
    return Attempt(moving.make_room(known, waiting.lease, waiting.demand, waiting.now_ms))


def foresee(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Foreseen | None:
    """A plan as if it had waited for long enough."""
    return Foreseen() if moving.could_make_room(known, lease, demand, now_ms) else None

"""Move others: leases that say they may be moved go elsewhere, and the place they leave is kept."""

from __future__ import annotations

from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.planning import Planning


def attempt(state: Planning, waiting: Waiting) -> Attempt:
    """A plan takes milliseconds; it rests for a second after one that came to nothing, and moves have a budget."""
    return Attempt(moving.make_room(state, waiting.lease, waiting.demand, waiting.now_ms))

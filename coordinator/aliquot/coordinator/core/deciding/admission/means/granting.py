"""Grant: it fits, and gets the place that was found."""

from __future__ import annotations

from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.planning import Planning


def attempt(known: Planning, waiting: Waiting) -> Attempt:
    """Costs nothing more: the place was found when it was offered."""
    assert waiting.found.placement is not None
    given_up = holding.give_up_of(known, waiting.lease.lease_id, waiting.now_ms, "the lease was granted elsewhere")
    return waiting.grant(waiting.found.placement, given_up)

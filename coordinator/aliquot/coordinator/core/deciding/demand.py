"""Taking down an hour of demand."""

from __future__ import annotations

from aliquot.coordinator.core.books.demand import HOUR_MS, LEAST_COVERED_PERMILLE, DemandNoted, most_of
from aliquot.coordinator.core.commands import NoteDemand
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import by_kind


def note(known: Known, command: NoteDemand, now_ms: int) -> Decision[None]:
    """An hour that was seen for long enough, is over, and comes after the last."""
    over = (command.hour + 1) * HOUR_MS <= now_ms
    if command.covered_permille < LEAST_COVERED_PERMILLE or command.hour <= known.demand.latest or not over:
        return NOTHING
    return Decision((DemandNoted(at_ms=now_ms, hour=command.hour, milli=most_of(dict(command.milli))),))


DECIDES = Decides(commands=by_kind(note))

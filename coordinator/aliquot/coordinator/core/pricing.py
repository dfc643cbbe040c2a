"""Prices that the learner has found: taken when they are newer than those in force."""

from __future__ import annotations

from aliquot.coordinator.core.commands import LearnPrices
from aliquot.coordinator.core.outcomes import NOTHING, Decision
from aliquot.coordinator.core.placement.facts import PricesLearnt
from aliquot.coordinator.core.planning import Planning


def learn(state: Planning, command: LearnPrices, now_ms: int) -> Decision[None]:
    """Take a table of prices that is newer than the one in force."""
    if state.prices is not None and command.table.version <= state.prices.version:
        return NOTHING
    return Decision((PricesLearnt(at_ms=now_ms, table=command.table),))

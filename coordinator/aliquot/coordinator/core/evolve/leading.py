"""How facts about the pool as a whole change the State."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.coordinator.core.books.leading import LeaderStarted, PricesLearnt
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact


def _leader_started(state: State, fact: LeaderStarted) -> None:
    state.leader_epoch = fact.leader_epoch


def _prices_learnt(state: State, fact: PricesLearnt) -> None:
    state.prices = fact.table


APPLY: dict[type[Fact], Callable[[State, Any], None]] = {
    LeaderStarted: _leader_started,
    PricesLearnt: _prices_learnt,
}

"""How facts about the pool as a whole change the State."""

from __future__ import annotations

from aliquot.coordinator.core.books.leading import LeaderStarted, PricesLearnt
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind


def _leader_started(state: State, fact: LeaderStarted) -> None:
    state.leader_epoch = fact.leader_epoch


def _prices_learnt(state: State, fact: PricesLearnt) -> None:
    state.prices = fact.table


SUBJECT = Subject(
    name="leading",
    apply=by_kind(_leader_started, _prices_learnt),
    saves=(
        saving.value("leader_epoch", int, "leader_epoch", 0),
        saving.value("prices", PriceTable | None, "prices", None),
    ),
)

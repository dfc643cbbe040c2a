"""How an hour that is over changes the books."""

from __future__ import annotations

from aliquot.coordinator.core.books.demand import DemandNoted
from aliquot.coordinator.core.evolve.subject import Subject
from aliquot.coordinator.core.state import State


def _demand_noted(state: State, fact: DemandNoted) -> None:
    state.demand.note(fact.hour, fact.milli)
    state.touched.demand.append((fact.hour, fact.milli))


SUBJECT = Subject(
    name="demand",
    apply={DemandNoted: _demand_noted},
)

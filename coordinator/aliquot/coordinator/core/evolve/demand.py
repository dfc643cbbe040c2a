"""How an hour that is over changes the books."""

from __future__ import annotations

from aliquot.coordinator.core.books.demand import DemandNoted, Hour
from aliquot.coordinator.core.evolve.saving import Saved, Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind


def _demand_noted(state: State, fact: DemandNoted) -> None:
    state.demand.note(fact.hour, fact.milli)
    state.touched.demand.append((fact.hour, fact.milli))


def _set_hours(state: State, hours: tuple[tuple[int, Hour], ...]) -> None:
    for number, hour in hours:
        state.demand.note(number, hour)


SUBJECT = Subject(
    name="demand",
    apply=by_kind(_demand_noted),
    saves=(Saved("demand", tuple[tuple[int, Hour], ...], lambda state: state.demand.after(-1), _set_hours),),
)

"""How an hour that is over changes the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.coordinator.core.books.demand import DemandNoted
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact


def _demand_noted(state: State, fact: DemandNoted) -> None:
    state.demand.note(fact.hour, fact.milli)
    state.touch_demand(fact.hour, fact.milli)


APPLY: dict[type[Fact], Callable[[State, Any], None]] = {DemandNoted: _demand_noted}

"""`evolve(state, fact)`: the only way the State changes, live and at replay alike.

One small function per fact. They trust the fact: whether it should happen was decided before it was journalled. What
they do not trust is the book-keeping, so the inventory and the transition table raise where it would become inexact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.coordinator.core.access import evolve as access
from aliquot.coordinator.core.capacity import evolve as capacity
from aliquot.coordinator.core.demand import evolve as demand
from aliquot.coordinator.core.elastic import evolve as elastic
from aliquot.coordinator.core.enrolment import evolve as enrolment
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.facts import LeaderStarted
from aliquot.coordinator.core.health import evolve as health
from aliquot.coordinator.core.holds import evolve as holds
from aliquot.coordinator.core.leases import evolve as leases
from aliquot.coordinator.core.ledger import evolve as ledger
from aliquot.coordinator.core.lending import evolve as lending
from aliquot.coordinator.core.maintenance import evolve as maintenance
from aliquot.coordinator.core.mig import evolve as mig
from aliquot.coordinator.core.nodes import evolve as nodes
from aliquot.coordinator.core.placement.facts import PricesLearnt
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.tenancy import evolve as tenancy
from aliquot.coordinator.core.use import evolve as use


def evolve(state: State, fact: Fact) -> None:
    """Apply one fact. Raises BrokenInvariant or InventoryError when the books would contradict themselves."""
    state.seq += 1
    state.now_ms = max(state.now_ms, fact.at_ms)
    _APPLY[type(fact)](state, fact)


def _leader_started(state: State, fact: LeaderStarted) -> None:
    state.leader_epoch = fact.leader_epoch


def _prices_learnt(state: State, fact: PricesLearnt) -> None:
    state.prices = fact.table


_APPLY: dict[type[Fact], Callable[[State, Any], None]] = {
    **nodes.APPLY,
    **leases.APPLY,
    LeaderStarted: _leader_started,
    PricesLearnt: _prices_learnt,
    **mig.APPLY,
    **tenancy.APPLY,
    **holds.APPLY,
    **ledger.APPLY,
    **elastic.APPLY,
    **lending.APPLY,
    **maintenance.APPLY,
    **access.APPLY,
    **enrolment.APPLY,
    **health.APPLY,
    **use.APPLY,
    **demand.APPLY,
    **capacity.APPLY,
}

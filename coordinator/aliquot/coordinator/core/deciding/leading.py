"""Leading: what a coordinator decides when it begins to lead, and what it learns meanwhile."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leading import LeaderStarted, PricesLearnt
from aliquot.coordinator.core.books.nodes import (
    NodeStateChanged,
)
from aliquot.coordinator.core.commands import LearnPrices
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.errors import (
    StaleLeader,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.types import NodeState


def start_leading(known: Known, command: c.StartLeading, now_ms: int) -> Decision[None]:
    """Every take-over has an epoch of its own. Nodes that were connected must register again."""
    if command.leader_epoch <= known.leader_epoch:
        raise StaleLeader(
            f"leader epoch {command.leader_epoch} is not above {known.leader_epoch}, which the journal has seen",
            hint="another coordinator has taken over; this one must stop",
        )
    facts: list[Fact] = [LeaderStarted(at_ms=now_ms, leader_epoch=command.leader_epoch)]
    for node_id, node in known.nodes.items():
        if node.state in (NodeState.READY, NodeState.RECONCILING):
            facts.append(
                NodeStateChanged(
                    at_ms=now_ms, node_id=node_id, state=NodeState.SUSPECT, reason="the coordinator started"
                )
            )
    return Decision(tuple(facts))


def raise_epoch(known: Known, command: c.RaiseEpoch, now_ms: int) -> Decision[None]:
    """Raise the epoch. Sessions go on; agents get the higher epoch from now on."""
    if command.leader_epoch <= known.leader_epoch:
        return NOTHING
    return Decision((LeaderStarted(at_ms=now_ms, leader_epoch=command.leader_epoch),))


# --------------------
# Prices that the learner has found: taken when they are newer than those in force.


def learn(known: Known, command: LearnPrices, now_ms: int) -> Decision[None]:
    """Take a table of prices that is newer than the one in force."""
    if known.prices is not None and command.table.version <= known.prices.version:
        return NOTHING
    return Decision((PricesLearnt(at_ms=now_ms, table=command.table),))


DECIDES = Decides(commands=by_kind(start_leading, raise_epoch, learn))

"""How nodes that change hands change the State: the loan, the guarantees that go with it, and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.lending.facts import NodeLent
from aliquot.coordinator.core.lending.loans import MOVES_KEPT, Loan, NodeMove
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.tenancy.evolve import redeclared


def _node_lent(state: State, fact: NodeLent) -> None:
    state.tenancy.accrue(fact.at_ms)
    loans = state.tenancy.loans
    if fact.borrower == fact.home:
        loans.pop(fact.node_id, None)
    else:
        loans[fact.node_id] = Loan(fact.node_id, fact.label, fact.home, fact.borrower, fact.guaranteed, fact.at_ms)
    move = NodeMove(fact.at_ms, fact.node_id, fact.pool, fact.lender, fact.borrower, fact.home, fact.reason)
    state.touch_node_move(move)
    state.node_moves.append(move)
    del state.node_moves[:-MOVES_KEPT]
    state.node_moved_ms[fact.node_id] = fact.at_ms
    redeclared(state)


def forget_loan(state: State, node_id: str, at_ms: int) -> None:
    """A node was removed: the guarantee that went with it goes home."""
    state.node_moved_ms.pop(node_id, None)
    if node_id in state.tenancy.loans:
        state.tenancy.accrue(at_ms)
        del state.tenancy.loans[node_id]
        redeclared(state)


APPLY: dict[type[Fact], Callable[[State, Any], None]] = {NodeLent: _node_lent}

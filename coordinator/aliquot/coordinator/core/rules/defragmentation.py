"""The defragmentation planner: a bounded number of moves that let more of what arrives fit.

It proposes; `core.moving.decide` carries out. A move is proposed only if the policy scores the new place higher and the
pool's fragmentation falls by more than a move is worth. A step looks at a few leases and at the nodes they touch,
whatever the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.fragmentation import Mix
from aliquot.coordinator.core.rules.trial import LeaseMove, LeasesByNode, Moves, PlacedLease, hold, let_go
from aliquot.coordinator.core.values.types import Demand

GAIN_MIN_MILLI = 100
"""A move must make at least a tenth of a device useful again."""

NODES_PER_STEP = 256
"""Nodes gone through in a step at most, full and empty ones among them."""


class Proposal(NamedTuple):
    """What the planner would do, and what that is worth."""

    moves: tuple[LeaseMove, ...]
    gained_milli: int
    """Idle share that the mix could use afterwards and can't now, on average over the mix."""
    cursor: int
    """Where to go on: pass it to the next call. 0 when every node was looked at."""


def propose(
    engine: Engine,
    by_node: LeasesByNode,
    mix: tuple[tuple[Demand, int], ...],
    *,
    moves_max: int,
    trials_max: int = 200,
    cursor: int = 0,
    gain_min_milli: int = GAIN_MIN_MILLI,
) -> Proposal:
    """At most `moves_max` moves, after trying no more than `trials_max` leases, those of node number `cursor` first.

    Nodes with most idle share come first: what sits there splits capacity that could serve larger requests. The
    inventory is as before on return. Without a mix nothing is proposed: nobody knows what would be useful.
    """
    weighed = Mix(mix)
    if not weighed.total_weight:
        return Proposal((), 0, 0)
    weighed.learn_classes(engine.inventory)
    order = _in_order(engine)
    gained = 0
    trials = 0
    with engine.inventory.trial():
        moving = Moves(engine)
        for number, node_id in enumerate(order[cursor : cursor + NODES_PER_STEP]):
            if trials >= trials_max or len(moving.made) >= moves_max:
                order_left = cursor + number
                break
            for placed in _movable(by_node, node_id):
                if len(moving.made) >= moves_max:
                    break
                trials += 1
                gained += _try_move(engine, weighed, moving, placed, gain_min_milli)
        else:
            order_left = cursor + NODES_PER_STEP
        moves = tuple(moving.made)
    return Proposal(moves, gained // weighed.total_weight, order_left if order_left < len(order) else 0)


def _try_move(engine: Engine, mix: Mix, moves: Moves, placed: PlacedLease, gain_min_milli: int) -> int:
    """Move the lease on trial, and back again if that gains too little; what was gained, times the mix's weight."""
    inventory = engine.inventory
    mark = inventory.mark
    target = moves.move(placed)
    if target is None:
        return 0
    touched = {*placed.placement.node_ids, *target.node_ids}
    after = _fragmented(engine, mix, touched)
    inventory.undo_to(mark)
    gain = _fragmented(engine, mix, touched) - after
    if gain < gain_min_milli * mix.total_weight:
        moves.made.pop()
        return 0
    let_go(inventory, placed.demand, placed.placement)
    hold(inventory, placed.demand, target)
    return gain


def _fragmented(engine: Engine, mix: Mix, node_ids: set[str]) -> int:
    """Fragmentation of some nodes, times the mix's weight."""
    table = engine.inventory.table
    nodes = [engine.inventory.node(node_id) for node_id in node_ids]
    rows = np.array([row for node in nodes for row in range(node.first_row, node.first_row + node.row_count)], np.int64)
    weighed = mix.of_rows(table.share_left[rows], table.cpu_left[rows], table.class_id[rows])
    return int(np.where(table.cpu_left[rows] >= 0, weighed, 0).sum())


def _movable(by_node: LeasesByNode, node_id: str) -> Iterator[PlacedLease]:
    for placed in sorted(by_node.get(node_id, ()), key=lambda o: o.lease_id):
        if placed.movable and placed.demand.gang_size == 1:
            yield placed


def _in_order(engine: Engine) -> list[str]:
    """Nodes, the idlest first; by rank where they are equally idle."""
    table = engine.inventory.table
    idle = table.share_left[: table.rows].sum(axis=1)
    first = np.flatnonzero(table.first_of_node[: table.rows])
    order = first[np.argsort(-idle[first], kind="stable")]
    nodes = (table.node_of_row[row] for row in order.tolist())
    return [node.spec.node_id for node in nodes if node is not None]

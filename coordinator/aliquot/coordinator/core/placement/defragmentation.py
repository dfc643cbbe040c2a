"""The defragmentation planner: a bounded number of moves that let more of what arrives fit.

It proposes; whoever allowed it carries out. A move is proposed only if the lease goes to a better place by the policy's
own lights and the pool's fragmentation falls by more than a move is worth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.fragmentation import Mix
from aliquot.coordinator.core.placement.moving import Move, Occupant, Occupants, Trial
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.types import Demand

GAIN_MIN_MILLI = 100
"""A move must make at least a tenth of a device useful again."""


class Proposal(NamedTuple):
    """What the planner would do, and what that is worth."""

    moves: tuple[Move, ...]
    fragmented_before_milli: int
    fragmented_after_milli: int
    cursor: int
    """Where to go on: pass it to the next call. 0 when every movable lease was looked at."""


def propose(
    engine: Engine,
    occupants: Occupants,
    mix: tuple[tuple[Demand, int], ...],
    *,
    moves_max: int,
    trials_max: int = 200,
    cursor: int = 0,
    gain_min_milli: int = GAIN_MIN_MILLI,
) -> Proposal:
    """At most `moves_max` moves, after looking at no more than `trials_max` leases from `cursor` on.

    Nodes with most idle share come first: what sits there splits capacity that could serve larger requests. The
    inventory is as before on return. Without a mix nothing is proposed: nobody knows what would be useful.
    """
    weighed = Mix(mix)
    if not weighed.total_weight:
        return Proposal((), 0, 0, 0)
    weighed.learn_classes(engine.inventory)
    leases = _in_order(engine, occupants)
    books = _Books(engine, weighed)
    before = books.total
    position = cursor
    with Trial(engine) as trial:
        for occupant in leases[cursor : cursor + trials_max]:
            if len(trial.moves) >= moves_max:
                break
            position += 1
            target = trial.move(occupant)
            if target is None:
                continue
            touched = [*occupant.placement.node_ids, *target.node_ids]
            gain = books.refresh(touched)
            if gain < gain_min_milli * weighed.total_weight:
                trial.undo_to(len(trial.moves) - 1)
                books.refresh(touched)
        moves = trial.planned()
    total = weighed.total_weight
    return Proposal(moves, before // total, books.total // total, position if position < len(leases) else 0)


class _Books:
    """The pool's fragmentation times the mix's weight, kept row by row."""

    def __init__(self, engine: Engine, mix: Mix) -> None:
        self._inventory = engine.inventory
        self._mix = mix
        self._by_row = self._of(np.arange(engine.inventory.table.rows))
        self.total = int(self._by_row.sum())

    def refresh(self, node_ids: list[str]) -> int:
        """Count some nodes again; returns how much less fragmented they are."""
        nodes = {node_id: self._inventory.node(node_id) for node_id in node_ids}
        rows = np.array(
            [row for node in nodes.values() for row in range(node.first_row, node.first_row + node.row_count)]
        )
        now = self._of(rows)
        gain = int((self._by_row[rows] - now).sum())
        self._by_row[rows] = now
        self.total -= gain
        return gain

    def _of(self, rows: Ints) -> Ints:
        table = self._inventory.table
        weighed = self._mix.of_rows(table.share_left[rows], table.cpu_left[rows], table.class_id[rows])
        return np.where(table.cpu_left[rows] >= 0, weighed, 0)


def _in_order(engine: Engine, occupants: Occupants) -> list[Occupant]:
    """Movable single leases, those on the idlest nodes first."""
    table = engine.inventory.table
    idle = table.share_left[: table.rows].sum(axis=1)
    order: list[tuple[int, int, str, Occupant]] = []
    for node_id, leases in occupants.items():
        if not engine.inventory.has_node(node_id):
            continue
        row = engine.inventory.node(node_id).first_row
        order += [(-int(idle[row]), row, o.lease_id, o) for o in leases if o.movable and o.demand.gang_size == 1]
    order.sort(key=lambda item: item[:3])
    return [occupant for _, _, _, occupant in order]

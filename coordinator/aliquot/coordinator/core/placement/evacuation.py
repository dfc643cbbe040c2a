"""Making room for a large request: which node to empty, and where its leases go.

Under churn small requests take every gap at once, and a request for a whole node never finds one. What serves it is a
node emptied on purpose; what keeps that cheap is (1) that nodes which large requests leave go to the next large request
first, and (2) that, where one is short, the node with the fewest leases is emptied by moving them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.moving import Move, Occupant, Occupants, Trial
from aliquot.coordinator.core.placement.shapes import shape_of
from aliquot.coordinator.core.types import Demand, Placement

NODES_LOOKED_AT = 64
"""Nodes whose leases are counted, those with the most idle share first."""

NODES_TRIED = 12
"""Nodes tried, those with the fewest leases to move first: bounds the time of a plan to a few milliseconds."""


class Evacuation(NamedTuple):
    """Moves that let the demand be placed, and where it then goes."""

    moves: tuple[Move, ...]
    placement: Placement


def evacuate(engine: Engine, occupants: Occupants, demand: Demand, *, moves_max: int) -> Evacuation | None:
    """The cheapest way found to make room for one member of `demand` with at most `moves_max` moves; None if none is.

    The inventory is as before on return.
    """
    for node_id, leases in _candidates(engine, occupants, demand):
        if len(leases) > moves_max:
            return None
        placement = _try_node(engine, node_id, leases, demand)
        if placement is not None:
            return placement
    return None


def _candidates(engine: Engine, occupants: Occupants, demand: Demand) -> list[tuple[str, list[Occupant]]]:
    """Nodes that suit the demand and hold only movable leases, none of them as large as the demand itself."""
    table = engine.inventory.table
    suits = np.zeros(table.rows, np.bool_)
    for models in demand.models or ((),):
        slot = engine.index.slot(shape_of(demand, models))
        suits |= engine.shapes.eligible_rows(slot)
    capacity = table.cpu_capacity[: table.rows]
    suits &= (table.cpu_left[: table.rows] >= 0) & ((capacity < 0) | (capacity >= demand.cpu_milli))
    rows = np.flatnonzero(suits)
    idle = table.share_left[rows].sum(axis=1)
    found: list[tuple[int, int, str, list[Occupant]]] = []
    for row in rows[np.argsort(-idle, kind="stable")][:NODES_LOOKED_AT].tolist():
        node = table.node_of_row[row]
        if node is None or any(other[2] == node.spec.node_id for other in found):
            continue
        leases = list(occupants.get(node.spec.node_id, ()))
        if all(o.movable and o.demand.gang_size == 1 and o.demand.count < demand.count for o in leases):
            found.append((len(leases), row, node.spec.node_id, leases))
    found.sort(key=lambda item: item[:2])
    return [(node_id, leases) for _, _, node_id, leases in found[:NODES_TRIED]]


def _try_node(engine: Engine, node_id: str, leases: list[Occupant], demand: Demand) -> Evacuation | None:
    """Empty the node on trial, the largest leases first: they are the hardest to place."""
    with Trial(engine) as trial:
        for occupant in sorted(leases, key=lambda o: (-o.demand.count * o.demand.share_milli, o.lease_id)):
            if trial.move(occupant, avoid_node_ids=(node_id,)) is None:
                return None
        placement = engine.place(demand)
        return Evacuation(trial.planned(), placement) if placement is not None else None

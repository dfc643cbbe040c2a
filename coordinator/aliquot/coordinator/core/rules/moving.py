"""Making room for a large request: which leases have to leave a node, and where they go.

Under churn small requests take every gap at once, and a request for many devices of one node never finds them. What
serves it is room made on purpose; what keeps that cheap is (1) that devices which large requests leave go to the next
large request first, which is the waiting lines' doing, and (2) that, where they are short, the node is chosen on which
the fewest leases are in the way, and these are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.rules.preemption.leaving import Expected, end_of
from aliquot.coordinator.core.rules.trial import LeaseMove, LeasesByNode, Moves, PlacedLease, let_go
from aliquot.coordinator.core.values.types import Demand, Placement

NODES_LOOKED_AT = 64
"""Nodes whose leases are counted, those with the most idle share first."""

NODES_TRIED = 12
"""Nodes tried, those with the fewest leases to move first: bounds the time of a plan to a few milliseconds."""


class Evacuation(NamedTuple):
    """Moves that let the demand be placed, and where it then goes."""

    moves: tuple[LeaseMove, ...]
    placement: Placement


class Candidate(NamedTuple):
    """A node, and who would have to leave it."""

    leases: tuple[PlacedLease, ...]
    """Those on the devices that cost the fewest moves."""
    others: tuple[PlacedLease, ...]
    """Others on the node that may move, should CPU be short; the largest users of it first."""
    row: int
    node_id: str


def evacuate(engine: Engine, by_node: LeasesByNode, demand: Demand, *, moves_max: int) -> Evacuation | None:
    """The cheapest way found to make room for one member of `demand` with at most `moves_max` moves; None if none is.

    The inventory is as before on return.
    """
    if not demand.count or demand.gang_size > 1 or moves_max < 1:
        return None
    for candidate in candidates(engine, by_node, demand, moves_max):
        found = _try_node(engine, candidate, demand, moves_max)
        if found is not None:
            return found
    return None


def candidates(
    engine: Engine, by_node: LeasesByNode, demand: Demand, moves_max: int, *, tried: int = NODES_TRIED
) -> list[Candidate]:
    """Nodes that suit the demand, those where the fewest leases are in the way first."""
    table = engine.inventory.table
    suits = np.zeros(table.rows, np.bool_)
    for shape in engine.matcher.shapes(demand):
        slot = engine.index.slot(shape)
        suits |= engine.shapes.eligible_rows(slot)
    capacity = table.cpu_capacity[: table.rows]
    suits &= (table.cpu_left[: table.rows] >= 0) & ((capacity < 0) | (capacity >= demand.cpu_milli))
    rows = np.flatnonzero(suits)
    idle = table.share_left[rows].sum(axis=1)
    found: list[Candidate] = []
    for row in rows[np.argsort(-idle, kind="stable")][:NODES_LOOKED_AT].tolist():
        candidate = _in_the_way(engine, by_node, demand, row)
        if candidate is not None and len(candidate.leases) <= moves_max:
            found.append(candidate)
    found.sort(key=lambda c: (len(c.leases), c.row))
    return found[:tried]


def _in_the_way(engine: Engine, by_node: LeasesByNode, demand: Demand, row: int) -> Candidate | None:
    """Which leases would have to leave this row; None where too few devices can be had at all."""
    node = engine.inventory.table.node_of_row[row]
    assert node is not None
    on_device: dict[str, list[PlacedLease]] = {}
    for placed in by_node.get(node.spec.node_id, ()):
        for member in placed.placement.members:
            for plan in member:
                on_device.setdefault(plan.device_uuid, []).append(placed)
    costs: list[tuple[int, int, int, list[PlacedLease]]] = []
    for device in engine.inventory.table.devices_of_row[row]:
        leases = on_device.get(device.spec.uuid, [])
        if device.works and not (device.withheld_for or device.admits) and all(_may_leave(o, demand) for o in leases):
            costs.append((len(leases), -device.share_left_milli, device.col, leases))
    if len(costs) < demand.count:
        return None
    costs.sort(key=lambda cost: cost[:3])
    leaving = {o.lease_id: o for _, _, _, leases in costs[: demand.count] for o in leases}
    others = {o.lease_id: o for leases in on_device.values() for o in leases if o.lease_id not in leaving}
    spare = sorted(
        (o for o in others.values() if _may_leave(o, demand)), key=lambda o: (-o.demand.cpu_milli, o.lease_id)
    )
    return Candidate(tuple(leaving.values()), tuple(spare), row, node.spec.node_id)


def _may_leave(placed: PlacedLease, demand: Demand) -> bool:
    """Leases as large as the demand itself stay: they would be as hard to place."""
    return placed.movable and placed.demand.gang_size == 1 and placed.demand.count < demand.count


def _try_node(engine: Engine, candidate: Candidate, demand: Demand, moves_max: int) -> Evacuation | None:
    """Move what is in the way on trial, the largest leases first: they are the hardest to place."""
    node_id = candidate.node_id
    wanted = msgspec.structs.replace(demand, node_ids=(node_id,))
    leases = sorted(candidate.leases, key=lambda o: (-o.demand.share_in_all, o.lease_id))
    with engine.inventory.trial():
        moves = Moves(engine)
        for placed in leases:
            if moves.move(placed, avoid_node_ids=(node_id,)) is None:
                return None
        placement = engine.place(wanted)
        for placed in candidate.others:
            if placement is not None or len(moves.made) == moves_max:
                break
            if moves.move(placed, avoid_node_ids=(node_id,)) is not None:
                placement = engine.place(wanted)
        return Evacuation(tuple(moves.made), placement) if placement is not None else None


# --------------------
# Room that is made step by step: devices are kept for a large request, and whoever would leave them last is moved.
# In a pool where requests always wait there is never room to move a whole node's leases at once: what is freed is
# gone at once. So the node is kept as it is, and each device that becomes free elsewhere may take one of its
# leases.


IN_THE_WAY_MAX = 24
"""A place in the way of which more leases are is not considered."""

STAYS_MIN_MS = 60_000
"""Whoever is expected to leave within this time is not moved for it."""


def last_to_leave(known: Known, hold: Hold, now_ms: int) -> Lease | None:
    """Who is expected to leave the devices of a hold last; None: everybody goes soon."""
    devices = set(hold.device_uuids)
    found: list[tuple[int, str]] = []
    for node_id in hold.placement.node_ids:
        for slice_id in known.slice_ids_by_node[node_id]:
            lease = known.leases[lease_id_of(slice_id)]
            piece = lease.find(slice_id)
            if piece is not None and piece.plan.device_uuid in devices:
                found.append((end_of(lease, now_ms)[0], lease.lease_id))
    if not found:
        return None
    end_ms, lease_id = max(found)
    return known.leases[lease_id] if end_ms >= now_ms + STAYS_MIN_MS else None


def cheapest(known: Known, by_node: LeasesByNode, demand: Demand, now_ms: int, moves: int) -> Expected | None:
    """Where the demand could start soonest if so many leases of one device, those that would stay longest, were moved;
    and when that would be. Larger leases in the way end by themselves: they are nearly as hard to place.
    """
    engine: Engine = known.engine
    if not demand.count or demand.gang_size > 1:
        return None
    best: Expected | None = None
    for candidate in candidates(engine, by_node, demand, IN_THE_WAY_MAX, tried=NODES_LOOKED_AT):
        start_ms = _start(known, candidate.leases, moves, now_ms)
        if best is not None and start_ms >= best.start_ms:
            continue
        wanted = msgspec.structs.replace(demand, node_ids=(candidate.node_id,))
        with known.inventory.trial() as inventory:
            for placed in candidate.leases:
                let_go(inventory, placed.demand, placed.placement)
            placement = engine.place(wanted)
        if placement is not None:
            best = Expected(placement, start_ms)
    return best


def _start(known: Known, leases: Sequence[PlacedLease], moves: int, now_ms: int) -> int:
    """When these have gone."""
    ends = sorted((end_of(known.leases[placed.lease_id], now_ms)[0], placed.demand.count == 1) for placed in leases)
    while ends and ends[-1][1] and moves:
        ends.pop()
        moves -= 1
    return ends[-1][0] if ends else now_ms

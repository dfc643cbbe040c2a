"""Room that is made step by step: devices are kept for a large request, and whoever would leave them last is moved.

In a pool where requests always wait there is never room to move a whole node's leases at once: what is freed is gone
at once. So the node is kept as it is, and each device that becomes free elsewhere may take one of its leases.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aliquot.coordinator.core.holds.records import Hold
from aliquot.coordinator.core.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.moving.evacuation import NODES_LOOKED_AT, candidates
from aliquot.coordinator.core.moving.plan import LeasesByNode, PlacedLease, let_go
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.preemption.reserving import Expected, end_of
from aliquot.coordinator.core.types import Demand

IN_THE_WAY_MAX = 24
"""A place in the way of which more leases are is not considered."""

STAYS_MIN_MS = 60_000
"""Whoever is expected to leave within this time is not moved for it."""


def last_to_leave(state: Planning, hold: Hold, now_ms: int) -> Lease | None:
    """Who is expected to leave the devices of a hold last; None: everybody goes soon."""
    devices = set(hold.device_uuids)
    found: list[tuple[int, str]] = []
    for node_id in hold.placement.node_ids:
        for slice_id in state.slice_ids_by_node[node_id]:
            lease = state.leases[lease_id_of(slice_id)]
            piece = lease.find(slice_id)
            if piece is not None and piece.plan.device_uuid in devices:
                found.append((end_of(lease, now_ms)[0], lease.lease_id))
    if not found:
        return None
    end_ms, lease_id = max(found)
    return state.leases[lease_id] if end_ms >= now_ms + STAYS_MIN_MS else None


def cheapest(state: Planning, by_node: LeasesByNode, demand: Demand, now_ms: int, moves: int) -> Expected | None:
    """Where the demand could start soonest if so many leases of one device, those that would stay longest, were moved;
    and when that would be. Larger leases in the way end by themselves: they are nearly as hard to place.
    """
    engine: Engine = state.engine
    if not demand.count or demand.gang_size > 1:
        return None
    best: Expected | None = None
    for candidate in candidates(engine, by_node, demand, IN_THE_WAY_MAX, tried=NODES_LOOKED_AT):
        start_ms, guessed_ms = _start(state, candidate.leases, moves, now_ms)
        if best is not None and start_ms >= best.start_ms:
            continue
        wanted = msgspec.structs.replace(demand, node_ids=(candidate.node_id,))
        with state.inventory.trial() as inventory:
            for placed in candidate.leases:
                let_go(inventory, placed.demand, placed.placement)
            placement = engine.place(wanted)
        if placement is not None:
            best = Expected(placement, start_ms, guessed_ms)
    return best


def _start(state: Planning, leases: Sequence[PlacedLease], moves: int, now_ms: int) -> tuple[int, int]:
    """(when these have gone, how much of the wait until then is guessed)."""
    ends = sorted((*end_of(state.leases[placed.lease_id], now_ms), placed.demand.count == 1) for placed in leases)
    while ends and ends[-1][2] and moves:
        ends.pop()
        moves -= 1
    guessed_ms = max((end_ms - now_ms for end_ms, guess, _ in ends if guess), default=0)
    return (ends[-1][0] if ends else now_ms), guessed_ms

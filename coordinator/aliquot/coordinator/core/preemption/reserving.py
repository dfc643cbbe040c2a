"""Devices kept for the head of a line: those that will be free for it soonest.

When a running lease will end is known from its time limit; without one it is guessed that it has as long to run as it
has run already. The reservation stands on that guess only in when it is expected to start: nobody is ended for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.placement.capacity import listed_rows
from aliquot.coordinator.core.preemption.nodeview import DeviceLoad, NodeViews
from aliquot.coordinator.core.preemption.search import Need
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.types import Demand, Placement, SlicePlan

NODES_MAX = 64
"""So many nodes are looked at (and twice as many as there are members), those with most room first."""


class Expected(NamedTuple):
    """When a demand could start if nobody else took anything, and where."""

    placement: Placement
    start_ms: int
    uncertainty_ms: int
    """How much of the wait rests on guesses, because leases without a time limit must end first."""


def end_of(lease: Lease, now_ms: int) -> tuple[int, bool]:
    """(when a lease is expected to end, whether that is a guess)."""
    if lease.ending:
        return max((piece.deadline_ms for piece in lease.holding), default=now_ms), False
    if lease.request.time_limit_ms:
        return max(now_ms, lease.granted_ms + lease.request.time_limit_ms), False
    return now_ms + max(60_000, now_ms - lease.granted_ms), True


def expect(state: State, views: NodeViews, lease_id: str, demand: Demand, now_ms: int) -> Expected | None:
    """The earliest start on devices of one model alternative, or None where the shape fits no node by itself."""
    best: Expected | None = None
    for shape in state.engine.matcher.shapes(demand):
        found = _expect(state, views, lease_id, demand, shape, now_ms)
        if found is not None and (best is None or found.start_ms < best.start_ms):
            best = found
    return best


def _expect(
    state: State, views: NodeViews, lease_id: str, demand: Demand, shape: Demand, now_ms: int
) -> Expected | None:
    inventory, engine = state.inventory, state.engine
    table = inventory.table
    rows = table.rows
    slot = engine.index.slot(shape)
    eligible = engine.shapes.eligible_rows(slot) & listed_rows(inventory, demand) & table.grantable[:rows]
    free = table.share_left[:rows].sum(axis=1)
    order = np.flatnonzero(eligible)
    order = order[np.argsort(-free[order], kind="stable")][: NODES_MAX + 2 * demand.gang_size]
    need = Need(shape, frozenset(demand.avoid_device_uuids), frozenset((lease_id,)), {})
    found: list[tuple[int, int, str, list[SlicePlan], bool]] = []
    seen: set[str] = set()
    for rank, row in enumerate(order.tolist()):
        node = table.node_of_row[row]
        if node is None or node.spec.node_id in seen:
            continue
        seen.add(node.spec.node_id)
        ready = []
        for load in views.of(node.spec.node_id).devices:
            size = need.on(load.record)
            if size is not None:
                ready.append((*_ready(state, load, size, now_ms), load.record.col, load, size))
        ready.sort(key=lambda item: item[:3])
        for number in range(len(ready) // max(demand.count, 1)):
            part = ready[number * demand.count : (number + 1) * demand.count]
            plans = [SlicePlan(node.spec.node_id, i[3].record.spec.uuid, *i[4]) for i in part]
            found.append((part[-1][0], rank, node.spec.node_id, plans, any(i[1] for i in part)))
    if len(found) < demand.gang_size:
        return None
    found.sort(key=lambda item: item[:2])
    used = found[: demand.gang_size]
    start_ms = used[-1][0]
    placement = Placement(
        tuple(tuple(plans) for _, _, _, plans, _ in used), tuple(node_id for _, _, node_id, _, _ in used)
    )
    guessed = [ready_ms - now_ms for ready_ms, _, _, _, guess in used if guess]
    return Expected(placement, start_ms, max(guessed, default=0))


def _ready(state: State, load: DeviceLoad, size: tuple[int, int], now_ms: int) -> tuple[int, bool]:
    """(when a slice will fit on the device, whether that is a guess)."""
    record = load.record
    share = record.spec.compute_milli - record.share_used_milli
    memory = record.memory_left_bytes
    if share >= size[0] and memory >= size[1]:
        return now_ms, False
    at_ms, guess = now_ms, False
    if load.leaving_share_milli or load.leaving_memory_bytes:
        share, memory = share + load.leaving_share_milli, memory + load.leaving_memory_bytes
        at_ms = now_ms + 1000
    ends = [(*end_of(state.leases[o.lease_id], now_ms), o.share_milli, o.memory_bytes) for o in load.occupants]
    ends += [(leaver.deadline_ms, False, leaver.share_milli, leaver.memory_bytes) for leaver in load.late]
    ends.sort()
    for end_ms, guessed, of_share, of_memory in ends:
        if share >= size[0] and memory >= size[1]:
            break
        share, memory = share + of_share, memory + of_memory
        at_ms, guess = max(at_ms, end_ms), guess or guessed
    return at_ms, guess

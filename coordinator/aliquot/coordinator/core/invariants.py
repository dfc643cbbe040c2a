"""What must be true between any two groups of facts. Tests and simulation check it after every step; production never does."""

from __future__ import annotations

from collections import Counter

from aliquot.coordinator.core.errors import BrokenInvariant
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI


def check(state: State) -> None:
    """Recount everything from the leases. Raises BrokenInvariant, naming what does not add up."""
    share: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    by_node: dict[str, set[str]] = {node_id: set() for node_id in state.nodes}
    waiting: set[str] = set()
    for lease in state.leases.values():
        _check_lease(lease)
        for piece in lease.holding:
            share[piece.plan.device_uuid] += piece.plan.share_milli
            memory[piece.plan.device_uuid] += piece.plan.memory_bytes
            _require(piece.plan.node_id in by_node, f"{piece.slice_id} sits on an unknown node")
            by_node[piece.plan.node_id].add(piece.slice_id)
        if lease.waiting:
            waiting.add(lease.lease_id)
    for uuid in state.devices:
        device = state.inventory.device(uuid)
        _require(
            device.share_used_milli == share[uuid],
            f"{uuid}: books say {share[uuid]} milli, inventory otherwise",
        )
        _require(device.memory_used_bytes == memory[uuid], f"{uuid}: books and inventory differ in memory")
        _require(share[uuid] <= WHOLE_SHARE_MILLI, f"{uuid}: {share[uuid]} milli are reserved")
        _require(memory[uuid] <= device.leasable_bytes, f"{uuid}: {memory[uuid]} bytes are reserved")
    _require(set(share) <= set(state.devices), "slices sit on unknown devices")
    for node_id, slice_ids in by_node.items():
        _require(set(state.slice_ids_by_node[node_id]) == slice_ids, f"{node_id}: the slice index is off")
    lined = sorted(state.lines.ids())
    _require(lined == sorted(waiting), "the waiting lines are not the waiting leases")
    _require(len(state.lines) == len(lined), "the waiting lines' length is off")
    _require(
        sorted(state.ended) == sorted(lease.lease_id for lease in state.leases.values() if lease.ended),
        "the list of ended leases is off",
    )


def _check_lease(lease: Lease) -> None:
    name = lease.lease_id
    _require(not (lease.ended and lease.holding), f"{name} has ended and holds capacity")
    _require(
        all(piece.lease_epoch <= lease.lease_epoch for piece in lease.slices),
        f"{name}: a slice of the future",
    )
    ids = [piece.slice_id for piece in lease.slices]
    _require(len(ids) == len(set(ids)), f"{name}: the same slice twice")
    _require(not lease.ending or bool(lease.holding), f"{name} is ending but holds nothing")
    current = [piece for piece in lease.slices if piece.lease_epoch == lease.lease_epoch]
    demand = lease.request.demand
    if current and not lease.ended:
        _require(len(current) == demand.count * demand.gang_size, f"{name}: a part of its gang is missing")
    for member in range(demand.gang_size if current else 0):
        pieces = [piece.plan for piece in current if piece.member == member]
        _require(len({plan.node_id for plan in pieces}) <= 1, f"{name}: member {member} spans nodes")
        _require(len({plan.device_uuid for plan in pieces}) == len(pieces), f"{name}: two slices on one device")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise BrokenInvariant(message)

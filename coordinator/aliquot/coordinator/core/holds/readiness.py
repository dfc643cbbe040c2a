"""Whether a hold can be granted now, or ever."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.coordinator.core.holds.records import Hold, HoldKind
from aliquot.coordinator.core.inventory.view import InventoryView
from aliquot.coordinator.core.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.types import Demand


def is_complete(leases: Mapping[str, Lease], inventory: InventoryView, hold: Hold) -> bool:
    """Whether everything the hold is for could be granted this moment."""
    wanted: dict[str, list[int]] = {}
    members: dict[str, int] = {}
    for node_id, member in zip(hold.placement.node_ids, hold.placement.members, strict=True):
        members[node_id] = members.get(node_id, 0) + 1
        for plan in member:
            sums = wanted.setdefault(plan.device_uuid, [0, 0])
            sums[0] += plan.share_milli
            sums[1] += plan.memory_bytes
    for uuid, (share_milli, memory_bytes) in wanted.items():
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not device.has_room(share_milli, memory_bytes):
            return False
    lease = leases.get(hold.owner)
    demand = lease.request.demand if lease is not None else Demand()
    return all(
        inventory.has_node(node_id)
        and inventory.node(node_id).grantable
        and inventory.node(node_id).may_take(demand, count)
        for node_id, count in members.items()
    )


def can_complete(leases: Mapping[str, Lease], inventory: InventoryView, hold: Hold) -> bool:
    """Whether it may still become complete: its devices and nodes are there, well, and open."""
    for uuid in hold.device_uuids:
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not inventory.node(device.node_id).grantable:
            return False
    if hold.kind is HoldKind.RESERVATION:
        return True
    return all(
        lease_id not in leases or leases[lease_id].ending or leases[lease_id].waiting for lease_id in hold.victims
    ) and all(_gives_way(leases, slice_id) for slice_id in hold.shed)


def _gives_way(leases: Mapping[str, Lease], slice_id: str) -> bool:
    """Whether a slice of an elastic lease is gone, or on its way out."""
    lease = leases.get(lease_id_of(slice_id))
    piece = lease.find(slice_id) if lease is not None else None
    return piece is None or piece.ending

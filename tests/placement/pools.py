"""Pools and random histories for the placement tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from aliquot.coordinator.core.inventory import Inventory, InventoryError
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec, Placement

GIB = 1 << 30
MIB = 1 << 20


def node(
    name: str,
    devices: int = 8,
    *,
    model: str = "A100-80",
    memory_gib: int = 80,
    island_size: int = 0,
    numa_size: int = 0,
    mig_profile: str = "",
    domain: str = "",
    labels: tuple[tuple[str, str], ...] = (),
    pool: str = "default",
    cpu_milli: int = 96_000,
) -> NodeSpec:
    """A node of equal devices; `island_size` devices share an NVLink island, `numa_size` a NUMA node."""
    return NodeSpec(
        node_id=name,
        name=name,
        devices=tuple(
            DeviceSpec(
                uuid=f"GPU-{name}-{index}",
                model=model,
                memory_total_bytes=memory_gib * GIB,
                memory_reserved_bytes=GIB // 2,
                index=index,
                nvlink_island=index // island_size if island_size else -1,
                numa_node=index // numa_size if numa_size else -1,
                mig_profile=mig_profile,
            )
            for index in range(devices)
        ),
        labels=labels,
        pool=pool,
        failure_domain=domain,
        cpu_milli=cpu_milli,
        host_memory_bytes=512 * GIB,
    )


def pool(*specs: NodeSpec) -> Inventory:
    """An inventory of ready nodes."""
    inventory = Inventory()
    for spec in specs:
        inventory.put_node(spec)
        inventory.set_grantable(spec.node_id, True)
    return inventory


@dataclass
class Books:
    """Applies placements as the coordinator would, and takes them back."""

    inventory: Inventory
    live: list[tuple[Demand, Placement]] = field(default_factory=list)

    def apply(self, demand: Demand, placement: Placement) -> None:
        for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
            for plan in slices:
                self.inventory.reserve(plan)
            self.inventory.reserve_member(node_id, demand)
        self.live.append((demand, placement))

    def undo(self, position: int) -> None:
        demand, placement = self.live.pop(position)
        for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
            for plan in slices:
                self.inventory.release(plan)
            self.inventory.release_member(node_id, demand)


def assert_sound(inventory: Inventory) -> None:
    """Records, arrays and totals agree, and no device holds more than it has."""
    table = inventory.table
    used: dict[tuple[str, str], list[int]] = {}
    for node_id in inventory.node_ids():
        record = inventory.node(node_id)
        assert record.cpu_used_milli <= record.spec.cpu_milli or record.spec.cpu_milli < 0
        for row in range(record.first_row, record.first_row + record.row_count):
            assert table.node_of_row[row] is record
            assert table.grantable[row] == record.grantable
            assert table.cpu_left[row] == (record.cpu_left_milli if record.open else -1)
            assert table.host_left[row] == record.host_memory_left_bytes
        for device in record.devices:
            assert 0 <= device.share_used_milli <= 1000
            assert 0 <= device.memory_used_bytes <= device.spec.leasable_bytes
            assert (device.slices == 0) == (device.share_used_milli == 0)
            assert table.share_left[device.row, device.col] == device.share_left_milli
            assert table.memory_left[device.row, device.col] == device.memory_left_bytes
            total = used.setdefault((record.spec.pool, device.spec.model), [0, 0, 0])
            total[0] += 1
            total[1] += device.share_used_milli
            total[2] += device.memory_used_bytes
    totals = inventory.totals()
    assert {k: [t.devices, t.share_used_milli, t.memory_used_bytes] for k, t in totals.items()} == used


__all__ = ["GIB", "MIB", "Books", "InventoryError", "assert_sound", "node", "pool"]

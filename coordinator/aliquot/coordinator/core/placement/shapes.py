"""Demands compiled for scanning.

A *shape* is what of a demand decides which rows suit it and how well: everything but the lists that differ
from request to request (nodes and devices to avoid or to keep to, the affinity group), which are applied when
a shape's scores are read. Shapes are few, so their scores are worth caching; their numbers stand in arrays,
one slot a shape, so that one row can be scored for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.inventory.records import MIB
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI, Demand, Topology

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER_SHARE = 1 << 20
"""A share that no device has: what a shape asks of classes that don't suit it."""

SHAPES_MAX = 256
"""Shapes with cached scores; the least recently asked for makes room."""


def shapes_of(demand: Demand) -> Iterator[Demand]:
    """The shapes of its alternatives in order of preference: by vendor, then by model."""
    for vendor in demand.vendors or (demand.vendor,):
        for models in demand.models or ((),):
            yield shape_of(demand, models, vendor)


def shape_of(demand: Demand, models: tuple[str, ...], vendor: str | None = None) -> Demand:
    """The shape of `demand` for one of its alternatives; `vendor` None: of whichever one it names alone."""
    return Demand(
        count=demand.count,
        share_milli=demand.share_milli,
        memory_bytes=demand.memory_bytes,
        models=(models,) if models else (),
        vendor=demand.vendor if vendor is None else vendor,
        mig_profile=demand.mig_profile,
        pool=demand.pool,
        cpu_milli=demand.cpu_milli,
        host_memory_bytes=demand.host_memory_bytes,
        node_selector=demand.node_selector,
        topology=demand.topology if demand.count > 1 else Topology.ANY,
        min_tier=demand.min_tier,
        instances=demand.instances,
        # Of one member nobody else is on its card. What uses several MIG instances is several programs, and none of
        # those libraries that mind a shared card.
        apart=demand.apart
        and demand.gang_size > 1
        and (demand.count == 1 or not (demand.mig_profile or demand.instances)),
    )


class ShapeTable:
    """The numbers of all shapes; `[class, slot]` where they depend on the device class, else `[slot]`."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.shapes: list[Demand] = []
        self.slots: dict[Demand, int] = {}
        self.allocations = 0
        """How often the arrays were replaced."""
        self._allocate(8, len(inventory.classes))

    def _allocate(self, capacity: int, classes: int) -> None:
        self.capacity, self.classes = capacity, classes
        self.allocations += 1
        self.by_class: Ints = np.zeros((4, classes + 1, capacity), np.int64)
        """[which, class, slot] `share`, `memory`, `size`, `asked`; the last class stands for no devices."""
        self.share, self.memory, self.size, self.asked = self.by_class
        """`size`: the larger of share and memory in thousandths of the device, what a slice costs a policy.
        `asked`: `share` where the class suits, else 0, for sums."""
        self.share[:] = NEVER_SHARE
        self.plain: Ints = np.zeros((3, capacity), np.int64)
        """[which, slot] `cpu`, `host`, `count`."""
        self.cpu, self.host, self.count = self.plain
        self.linked: Bools = np.zeros(capacity, np.bool_)
        """Wants its slices close together."""
        self.require_island: Bools = np.zeros(capacity, np.bool_)
        self.proportional: Bools = np.zeros(capacity, np.bool_)
        """Memory follows from the share."""
        self.any_linked = self.any_cpu_only = self.any_host = False
        for slot, shape in enumerate(self.shapes):
            self._write(slot, shape)

    @property
    def used(self) -> int:
        """Slots in use."""
        return len(self.shapes)

    def sync_classes(self) -> bool:
        """Take up device classes that came since; True if there were any."""
        if len(self._inventory.classes) == self.classes:
            return False
        self._allocate(self.capacity, len(self._inventory.classes))
        return True

    def put(self, slot: int, shape: Demand) -> None:
        """Write a shape to `slot`, which is the next free one or replaces another."""
        if slot == len(self.shapes):
            self.shapes.append(shape)
            if slot >= self.capacity:
                self._allocate(self.capacity * 2, self.classes)
        else:
            del self.slots[self.shapes[slot]]
            self.shapes[slot] = shape
        self.slots[shape] = slot
        self._write(slot, shape)

    def _write(self, slot: int, shape: Demand) -> None:
        self.count[slot] = shape.count
        self.cpu[slot] = shape.cpu_milli
        self.host[slot] = shape.host_memory_bytes
        self.linked[slot] = shape.topology != Topology.ANY
        self.any_linked |= shape.topology != Topology.ANY
        self.any_cpu_only |= shape.count == 0
        self.any_host |= shape.host_memory_bytes > 0
        self.require_island[slot] = shape.topology == Topology.REQUIRE_ISLAND
        self.proportional[slot] = shape.memory_bytes == 0
        self.share[:, slot] = NEVER_SHARE
        self.memory[:, slot] = 0
        self.asked[:, slot] = 0
        self.size[:, slot] = 0
        for class_id in range(self.classes):
            device_class = self._inventory.classes[class_id]
            size = device_class.slice_of(shape) if shape.count else None
            if size is not None:
                share, memory = size
                self.share[class_id, slot] = self.asked[class_id, slot] = share
                # Of a MIG instance all is taken that foreign processes leave; what must be left is what was asked for.
                self.memory[class_id, slot] = shape.memory_bytes if device_class.mig_profile else memory
                whole = device_class.compute_milli
                self.size[class_id, slot] = max(share, min(whole, -(-memory * whole // device_class.leasable_bytes)))

    def eligible_rows(self, slot: int) -> Bools:
        """Rows that suit the shape whatever is held on them: class, pool, selector, width."""
        inventory, shape = self._inventory, self.shapes[slot]
        table = inventory.table
        rows = table.rows
        if shape.count:
            suits: Bools = self.share[table.class_id[:rows], slot] <= WHOLE_SHARE_MILLI
            suits &= table.width[:rows] >= shape.count
        else:
            suits = table.first_of_node[:rows].copy()
        if shape.pool:
            pools = inventory.pools
            suits &= table.pool[:rows] == (pools.index(shape.pool) if shape.pool in pools else -1)
        if shape.topology == Topology.REQUIRE_ISLAND:
            suits &= table.islands[:rows] > 0
        if shape.min_tier:
            tier = table.tier[:rows]
            suits &= (tier == UNKNOWN) | (tier >= shape.min_tier)
        if shape.node_selector:
            wanted = set(shape.node_selector)
            for row in np.flatnonzero(suits).tolist():
                node = table.node_of_row[row]
                suits[row] = node is not None and wanted.issubset(node.spec.labels)
        return suits


def proportional_memory(base: Ints, share: Ints) -> Ints:
    """`resolve_slice` for arrays: what a share of `base` bytes is, to a MiB; whole devices take all of it."""
    part = base * share // WHOLE_SHARE_MILLI // MIB * MIB
    return np.where(share == WHOLE_SHARE_MILLI, base, part)

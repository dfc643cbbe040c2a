"""The structure of arrays that policies scan: one row per node and device class, one column per device.

A row holds devices of one class only, so that what a demand resolves to (share, memory) is one number per row, and a
member's slices sit on interchangeable devices. Rows stand in the order of their nodes' ranks, so that the first of
several equal scores is the lowest rank. A removed node leaves a dead row behind until the next rebuild.

Padding, sick and vanished devices have `share_left == 0`, which no demand fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory.records import DeviceRecord, NodeRecord
from aliquot.coordinator.core.values.types import UNKNOWN

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_STATE = ("share_left", "memory_left", "usable", "base")
_NODE = ("cpu_left", "host_left", "class_id", "width", "has_foreign")
_LINKS = ("island", "numa")
_FLAGS = ("grantable", "first_of_node", "numa_known")
_PLAIN = ("domain", "pool", "cpu_capacity", "host_capacity", "islands", "tier")


class DeviceTable:
    """Arrays of `rows` live or dead rows. Every array is longer than that (amortised growth): slice before scanning.

    What scoring reads of each row lies in two blocks, `state` and `node`, so that a few rows are fetched in two steps;
    the named arrays are views of them.
    """

    state: Ints
    """[which, row, device] `share_left`, `memory_left`, `usable`, `base`."""
    share_left: Ints
    memory_left: Ints
    usable: Ints
    """The smaller of share left and memory left, in thousandths of the device: what is left as one number."""
    base: Ints
    """What a proportional slice is a share of, in bytes; -1: no proportional slice here."""
    node: Ints
    """[which, row] `cpu_left`, `host_left`, `class_id`, `width`, `has_foreign`."""
    cpu_left: Ints
    """-1 while the node is not open to grants: no demand fits, not even one for no CPU."""
    host_left: Ints
    class_id: Ints
    width: Ints
    has_foreign: Ints
    """1: some device has foreign memory, so that proportional slices differ from device to device."""
    island: Ints
    """[row, device] NVLink island, numbered from 0 in each row; -1: none or unknown."""
    numa: Ints
    """[row, device]"""
    domain: Ints
    pool: Ints
    cpu_capacity: Ints
    host_capacity: Ints
    islands: Ints
    """How many NVLink islands the row knows; 0: none."""
    tier: Ints
    """Strongest enforcement tier that every device of the row gives; -1: unknown, which counts as any."""
    grantable: Bools
    first_of_node: Bools
    """Rows of one node follow one another; this marks the first."""
    numa_known: Bools
    """Every device of the row says which NUMA node it hangs on."""

    def __init__(self) -> None:
        self.rows = 0
        self.allocations = 0
        """How often the arrays were replaced by larger ones."""
        self.columns = 1
        self.knows_links = False
        """Some row knows its NVLink islands or NUMA nodes."""
        self._capacity = 0
        self.node_of_row: list[NodeRecord | None] = []
        self.devices_of_row: list[tuple[DeviceRecord, ...]] = []
        self._allocate(16, 1)

    def _allocate(self, capacity: int, columns: int) -> None:
        rows, old_columns = self.rows, self.columns
        state: Ints = np.zeros((len(_STATE), capacity, columns), np.int64)
        node: Ints = np.zeros((len(_NODE), capacity), np.int64)
        if rows:
            state[:, :rows, :old_columns] = self.state[:, :rows]
            node[:, :rows] = self.node[:, :rows]
        self.state, self.node = state, node
        for number, name in enumerate(_STATE):
            setattr(self, name, state[number])
        for number, name in enumerate(_NODE):
            setattr(self, name, node[number])
        for name in _LINKS:
            links: Ints = np.full((capacity, columns), UNKNOWN, np.int64)
            if rows:
                links[:rows, :old_columns] = getattr(self, name)[:rows]
            setattr(self, name, links)
        for name in (*_FLAGS, *_PLAIN):
            vector: npt.NDArray[Any] = np.zeros(capacity, np.bool_ if name in _FLAGS else np.int64)
            if rows:
                vector[:rows] = getattr(self, name)[:rows]
            setattr(self, name, vector)
        self._capacity, self.columns = capacity, columns
        self.allocations += 1

    def add_row(self, node: NodeRecord, devices: Sequence[DeviceRecord], *, domain: int, pool: int) -> int:
        """Append one row of `node`; returns its index. The caller refreshes it afterwards."""
        row = self.rows
        columns = max(self.columns, len(devices))
        if row >= self._capacity or columns > self.columns:
            self._allocate(max(16, self._capacity * 2) if row >= self._capacity else self._capacity, columns)
        self.rows = row + 1
        self.node_of_row.append(node)
        self.devices_of_row.append(())
        self.describe_row(row, node, devices, domain=domain, pool=pool)
        return row

    def describe_row(
        self, row: int, node: NodeRecord, devices: Sequence[DeviceRecord], *, domain: int, pool: int
    ) -> None:
        """(Re)write everything of a row that does not change with leases."""
        self.node_of_row[row] = node
        self.devices_of_row[row] = tuple(devices)
        self.width[row] = len(devices)
        self.class_id[row] = devices[0].class_id if devices else -1
        self.domain[row] = domain
        self.pool[row] = pool
        self.cpu_capacity[row] = node.spec.cpu_milli
        self.host_capacity[row] = node.spec.host_memory_bytes
        self.state[:, row] = 0
        self.island[row] = self.numa[row] = UNKNOWN
        known = sorted({d.spec.nvlink_island for d in devices} - {UNKNOWN})
        numbers = {island: number for number, island in enumerate(known)}
        self.islands[row] = len(known)
        self.numa_known[row] = len(devices) > 1 and all(d.spec.numa_node >= 0 for d in devices)
        self.knows_links |= bool(known) or bool(self.numa_known[row])
        self.tier[row] = tier = weakest_tier(node, devices)
        for col, device in enumerate(devices):
            device.row, device.col, device.tier = row, col, tier
            self.island[row, col] = numbers.get(device.spec.nvlink_island, UNKNOWN)
            self.numa[row, col] = device.spec.numa_node
            self.refresh_device(device)

    def refresh_device(self, device: DeviceRecord) -> None:
        """Mirror one device's record."""
        self.refresh_left(device)
        self.base[device.row, device.col] = device.proportional_base_bytes
        self.has_foreign[device.row] = any(d.foreign_bytes for d in self.devices_of_row[device.row])

    def refresh_left(self, device: DeviceRecord) -> None:
        """Mirror what is left of it: all that leases change."""
        row, col, spec = device.row, device.col, device.spec
        share, memory = device.share_left_milli, device.memory_left_bytes
        self.share_left[row, col] = share
        self.memory_left[row, col] = memory
        # The smaller of the two, in thousandths of the card.
        self.usable[row, col] = max(min(share, memory * spec.compute_milli // (spec.leasable_bytes or 1)), 0)

    def refresh_node(self, node: NodeRecord) -> None:
        """Mirror the node's part of each of its rows."""
        first = node.first_row
        for row in range(first, first + node.row_count):
            self.cpu_left[row] = node.cpu_left_milli if node.open else -1
            self.host_left[row] = node.host_memory_left_bytes
            self.grantable[row] = node.grantable
            self.first_of_node[row] = row == first

    def kill_row(self, row: int) -> None:
        """Make a removed node's row fit nothing."""
        self.node_of_row[row] = None
        self.devices_of_row[row] = ()
        self.state[:, row] = 0
        self.node[:, row] = 0
        self.cpu_left[row] = self.class_id[row] = -1
        self.grantable[row] = False
        self.first_of_node[row] = False
        self.islands[row] = 0


def weakest_tier(node: NodeRecord, devices: Sequence[DeviceRecord]) -> int:
    """The tier that every one of these devices gives; those of which it is unknown are taken to give any."""
    tiers = (d.spec.best_tier if d.spec.best_tier != UNKNOWN else node.spec.best_tier for d in devices)
    return min((tier for tier in tiers if tier != UNKNOWN), default=UNKNOWN)


def rows_of(devices: Iterable[DeviceRecord]) -> list[list[DeviceRecord]]:
    """Rows of one node: its devices by class; one empty row for a node without devices."""
    parts: dict[int, list[DeviceRecord]] = {}
    for device in devices:
        parts.setdefault(device.class_id, []).append(device)
    return list(parts.values()) or [[]]

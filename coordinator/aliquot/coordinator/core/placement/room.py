"""How many members of a demand every row could take: what decides at once whether a gang can fit at all.

Members of a gang are alike, so rows fill independently of one another and the sum over nodes is exact: a gang
that fits by this count can be placed, and one that does not need not be tried.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, proportional_memory
from aliquot.coordinator.core.values.types import Demand, Topology

MANY = 1 << 30


def slots_per_device(
    inventory: Inventory, shapes: ShapeTable, slot: int, *, empty: bool = False, rows: Ints | slice | None = None
) -> Ints:
    """[row, device] how many slices of the shape fit; `empty`: were nothing held and every device well.

    `rows`: of these rows; None: of all.
    """
    table = inventory.table
    rows = slice(table.rows) if rows is None else rows
    classes = table.class_id[rows]
    share = shapes.share[classes, slot][:, None]
    if empty:
        leasable = np.array([c.leasable_bytes for c in inventory.classes] + [0], np.int64)[classes][:, None]
        exists = np.arange(table.columns)[None, :] < table.width[rows][:, None]
        compute = np.array([c.compute_milli for c in inventory.classes] + [0], np.int64)[classes][:, None]
        left = np.where(exists, compute, 0)
        memory_left = np.broadcast_to(leasable, left.shape)
        base = memory_left
    else:
        left, memory_left, base = table.share_left[rows], table.memory_left[rows], table.base[rows]
    if shapes.proportional[slot]:
        memory = np.where(base >= 0, proportional_memory(base, share), np.int64(1) << 60)
    else:
        memory = np.broadcast_to(shapes.memory[classes, slot][:, None], left.shape)
    by_memory = np.where(memory > 0, np.maximum(memory_left, 0) // np.maximum(memory, 1), MANY)
    slots: Ints = np.minimum(left // share, by_memory)
    return slots


def members_by_slots(slots: Ints, count: int) -> Ints:
    """[row] members of `count` slices on distinct devices that devices with so many slots can take.

    m members fit if and only if the sum of min(slots, m) reaches m * count (Gale–Ryser for equal columns).
    """
    low: Ints = np.zeros(len(slots), np.int64)
    high: Ints = slots.sum(axis=1) // count
    if count == 1:
        return high
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = np.minimum(slots, middle[:, None]).sum(axis=1) >= middle * count
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - 1)
    return low


def members_per_row(
    inventory: Inventory,
    shapes: ShapeTable,
    slot: int,
    eligible: Bools,
    *,
    empty: bool = False,
    avoid: Iterable[str] = (),
) -> Ints:
    """[row] members that each eligible row could take, by devices (but these to avoid), links, CPU and host memory."""
    table, shape = inventory.table, shapes.shapes[slot]
    members = np.where(eligible, _by_devices(inventory, shapes, slot, avoid, empty=empty), 0)
    if not empty:
        members = np.where(table.cpu_left[: table.rows] >= 0, members, 0)
    return np.minimum(members, _host_members(inventory, shape, empty=empty))


def _by_devices(
    inventory: Inventory,
    shapes: ShapeTable,
    slot: int,
    avoid: Iterable[str],
    *,
    empty: bool = False,
    rows: Ints | slice | None = None,
) -> Ints:
    """[row] members by devices and their links alone; `rows`: of these rows; None: of all."""
    table, shape = inventory.table, shapes.shapes[slot]
    rows = slice(table.rows) if rows is None else rows
    if not shape.count:
        return np.full(len(table.width[rows]), MANY, np.int64)
    slots = slots_per_device(inventory, shapes, slot, empty=empty, rows=rows)
    numbers: Ints = np.arange(table.rows)[rows]
    for device in [inventory.device_record(uuid) for uuid in avoid if inventory.has_device(uuid)]:
        slots[numbers == device.row, device.col] = 0
    if shape.apart:
        slots = _one_on_a_card(inventory, slots, numbers)
    if shape.topology != Topology.REQUIRE_ISLAND:
        return members_by_slots(slots, shape.count)
    members: Ints = np.zeros(len(slots), np.int64)
    for island in range(int(table.islands[rows].max(initial=0))):
        members += members_by_slots(np.where(table.island[rows] == island, slots, 0), shape.count)
    return members


def _one_on_a_card(inventory: Inventory, slots: Ints, numbers: Ints) -> Ints:
    """The same, with one slot for each card at most; `numbers`: the rows that these are."""
    found: Ints = np.minimum(slots, 1)
    for at, row in enumerate(numbers.tolist()):
        devices = inventory.table.devices_of_row[row]
        if devices and devices[0].spec.parent_uuid:
            cards: set[str] = set()
            for device in devices:
                if found[at, device.col] and device.spec.card in cards:
                    found[at, device.col] = 0
                elif found[at, device.col]:
                    cards.add(device.spec.card)
    return found


def _host_members(
    inventory: Inventory, shape: Demand, *, empty: bool = False, rows: Ints | slice | None = None
) -> Ints:
    table = inventory.table
    rows = slice(table.rows) if rows is None else rows
    limit: Ints = np.full(len(table.width[rows]), MANY, np.int64)
    for wanted, left in (
        (shape.cpu_milli, table.cpu_capacity if empty else table.cpu_left),
        (shape.host_memory_bytes, table.host_capacity if empty else table.host_left),
    ):
        if wanted:
            have = left[rows]
            limit = np.minimum(limit, np.where(have < 0, MANY if empty else 0, have // wanted))
    return limit


def members_per_node(
    inventory: Inventory, demand: Demand, shape: Demand, per_row: Ints, *, empty: bool = False
) -> Ints:
    """`per_row` with the rows of one node brought under what they share, put on the node's first row.

    That is CPU, host memory, and the limit on members of the affinity group.
    """
    table = inventory.table
    rows = table.rows
    first = np.maximum.accumulate(np.where(table.first_of_node[:rows], np.arange(rows), 0))
    per_node: Ints = np.zeros(rows, np.int64)
    np.add.at(per_node, first, per_row)
    per_node = np.minimum(per_node, _host_members(inventory, shape, empty=empty))
    if demand.max_per_node:
        limit: Ints = np.full(rows, demand.max_per_node, np.int64)
        if not empty:
            for node_id, members in inventory.groups.get(demand.affinity_group, {}).items():
                limit[inventory.node(node_id).first_row] -= members
        per_node = np.minimum(per_node, np.maximum(limit, 0))
    return per_node


def room(inventory: Inventory, demand: Demand, shape: Demand, *, empty: bool = False) -> int:
    """Members that the pool can take as this shape now; `empty`: could take, were it empty, well and ready."""
    return int(rooms(inventory, demand, shape, empty=empty).sum())


def rooms(inventory: Inventory, demand: Demand, shape: Demand, *, empty: bool = False) -> Ints:
    """[row] the same for each node, put on its first row."""
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    eligible = shapes.eligible_rows(0) & listed_rows(inventory, demand, empty=empty)
    if not eligible.any():
        return np.zeros(inventory.table.rows, np.int64)
    avoid = () if empty else demand.avoid_device_uuids
    per_row = members_per_row(inventory, shapes, 0, eligible, empty=empty, avoid=avoid)
    return members_per_node(inventory, demand, shape, per_row, empty=empty)


def rooms_of(inventory: Inventory, demand: Demand, shape: Demand, rows: Ints, starts: Ints, eligible: Bools) -> Ints:
    """[node] members that nodes can take now whose rows are these, and begin there among them; `eligible` rows fit."""
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    members = np.where(eligible, _by_devices(inventory, shapes, 0, demand.avoid_device_uuids, rows=rows), 0)
    members = np.minimum(members, _host_members(inventory, shape, rows=rows))
    of_node: Ints = np.add.reduceat(members, starts)
    first = rows[starts]
    of_node = np.minimum(of_node, _host_members(inventory, shape, rows=first))
    if demand.max_per_node:
        group = inventory.groups.get(demand.affinity_group, {})
        there = {inventory.node(node_id).first_row: count for node_id, count in group.items()}
        left = [max(demand.max_per_node - there.get(row, 0), 0) for row in first.tolist()]
        of_node = np.minimum(of_node, np.array(left, np.int64))
    return of_node


def listed_rows(inventory: Inventory, demand: Demand, *, empty: bool = False) -> Bools:
    """[row] what the demand's own node lists leave. `empty` ignores the nodes to avoid: back-offs pass."""
    rows = inventory.table.rows
    listed: Bools = np.full(rows, not demand.node_ids, np.bool_)
    for node_ids, value in ((demand.node_ids, True), (() if empty else demand.avoid_node_ids, False)):
        for node_id in node_ids:
            if inventory.has_node(node_id):
                node = inventory.node(node_id)
                listed[node.first_row : node.first_row + node.row_count] = value
    return listed

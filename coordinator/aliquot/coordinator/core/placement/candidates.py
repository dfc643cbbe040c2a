"""What a policy sees: some rows against some shapes, as arrays that broadcast.

Two axes: (row, shape) for what belongs to nodes, (state, shape) for what belongs to devices; an axis is 1 long where the
value does not depend on it. A *state* is a device of a row, or several devices of it that have the same left and so are
interchangeable; `row_of` says which row a state belongs to. One formula therefore serves a few changed rows against all
shapes (an update) and all rows against one shape (a full scan), and gives the same integers in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.inventory import DeviceTable
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, proportional_memory

CPU_SCORED_MAX = 1 << 30
"""More CPU than this (a node that doesn't report it) counts as this in scores, so that products stay in 64 bits."""

DISTINCT_ROWS_MAX = 64
"""Up to so many rows, equal devices are found one by one, which costs less than scoring them twice."""

ISLAND = 2
NUMA_NODE = 1


class Extent(NamedTuple):
    """The largest node of the pool, to which some policies scale."""

    widest_milli: int
    largest_cpu_milli: int


@dataclass(slots=True)
class Candidates:
    """Rows against shapes. Units: thousandths of a device, thousandths of a CPU."""

    rows: Ints
    """[row] their numbers."""
    all_left: Ints
    """[row, device] share left; 0 for padding and for devices that can't serve."""
    all_usable: Ints
    """[row, device] the smaller of share left and memory left: what is left of a device as one number."""
    idle: Ints
    """[row, 1] share left on all devices."""
    width: Ints
    """[row, 1] devices of the row."""
    cpu_left: Ints
    """[row, 1] CPU left, at most `CPU_SCORED_MAX`."""
    class_id: Ints
    """[row, 1] index of the device class."""
    kinds: Ints
    """[row, 1] bit set of the kinds of members on the node (`member_kind`)."""
    row_of: Ints
    """[state] position of the state's row in `rows`."""
    starts: Ints
    """[row] position of each row's first state."""
    left: Ints
    """[state, 1] share left."""
    usable: Ints
    """[state, 1] as `all_usable`."""
    fits: Bools
    """[state, shape] a slice of the shape fits the device."""
    share: Ints
    """[row or 1, shape] share of one slice, at most a device's."""
    size: Ints
    """[state or 1, shape] the larger of a slice's share and its part of the memory."""
    count: Ints
    """[1, shape] slices of one member; 0 for requests of CPU only."""
    cpu: Ints
    """[1, shape] CPU of one member."""
    kind: Ints
    """[1, shape] `member_kind` of the shape."""
    extent: Extent


class Feasible(NamedTuple):
    """Candidates with what the engine itself needs of them."""

    candidates: Candidates
    allowed: Bools
    """[row, shape] the member fits the row."""
    tier: Ints | None
    """[row, shape] 2: its slices can share an NVLink island; 1: a NUMA node; None: nobody asked."""
    columns: Ints
    """[state, 1] the (first) device of each state."""


class _States(NamedTuple):
    """Device states of some rows, flat."""

    row_of: Ints
    columns: Ints
    starts: Ints
    weight: Ints
    """[state, 1] devices in each state."""


def gather(
    table: DeviceTable, shapes: ShapeTable, extent: Extent, rows: Ints, slots: slice, eligible: Bools
) -> Feasible:
    """Put `rows` and the shapes in `slots` together; `eligible` is [row, shape]."""
    all_left = table.share_left[rows]
    states = _distinct(table, rows, all_left) if len(rows) <= DISTINCT_ROWS_MAX else _every(all_left)
    row_of = states.row_of
    where = rows[row_of], states.columns
    left = table.share_left[where][:, None]
    memory_left = table.memory_left[where][:, None]
    class_id = table.class_id[rows]
    if len(rows) == 1:
        of_row: Ints | slice = slice(int(class_id[0]), int(class_id[0]) + 1) if class_id[0] >= 0 else class_id
        of_state = of_row
    else:
        of_row, of_state = class_id, class_id[row_of]
    share = shapes.share[of_state, slots]
    fits = left >= share
    memory = shapes.memory[of_state, slots]
    if table.has_foreign[rows].any():
        base = table.base[where][:, None]
        proportional = shapes.proportional[slots][None, :]
        memory = np.where(proportional, proportional_memory(base, share), memory)
        fits &= ~proportional | (base >= 0)
    fits &= memory_left >= memory
    count = shapes.count[slots][None, :]
    cpu = shapes.cpu[slots][None, :]
    cpu_left = table.cpu_left[rows][:, None]
    allowed = np.add.reduceat(fits * states.weight, states.starts, axis=0) >= count
    allowed &= eligible
    allowed &= cpu_left >= cpu
    allowed &= table.host_left[rows][:, None] >= shapes.host[slots][None, :]
    allowed &= table.grantable[rows][:, None]
    tier = _topology_tier(table, shapes, rows, slots, all_left)
    if tier is not None:
        allowed &= ~shapes.require_island[slots][None, :] | (tier == ISLAND)
    candidates = Candidates(
        rows=rows,
        all_left=all_left,
        all_usable=table.usable[rows],
        idle=all_left.sum(axis=1)[:, None],
        width=table.width[rows][:, None],
        cpu_left=np.minimum(cpu_left, CPU_SCORED_MAX),
        class_id=class_id[:, None],
        kinds=table.kinds[rows][:, None],
        row_of=row_of,
        starts=states.starts,
        left=left,
        usable=table.usable[where][:, None],
        fits=fits,
        share=shapes.asked[of_row, slots],
        size=shapes.size[of_state, slots],
        count=count,
        cpu=cpu,
        kind=shapes.kind[slots][None, :],
        extent=extent,
    )
    return Feasible(candidates, allowed, tier, states.columns[:, None])


def _every(all_left: Ints) -> _States:
    """Each device is a state of its own."""
    rows, width = all_left.shape
    return _States(
        np.repeat(np.arange(rows), width),
        np.tile(np.arange(width), rows),
        np.arange(0, rows * width, width),
        np.ones((1, 1), np.int64),
    )


def _distinct(table: DeviceTable, rows: Ints, all_left: Ints) -> _States:
    """Equal devices of a row as one state, without those that have nothing left.

    The first device of a row is always there: requests without devices are scored in its state.
    """
    row_of: list[int] = []
    columns: list[int] = []
    starts: list[int] = []
    weights: list[int] = []
    lefts, memories = all_left.tolist(), table.memory_left[rows].tolist()
    bases = table.base[rows].tolist() if table.has_foreign[rows].any() else memories
    for position, (left, memory, base) in enumerate(zip(lefts, memories, bases, strict=True)):
        starts.append(len(columns))
        seen: dict[tuple[int, int, int], int] = {}
        for column, state in enumerate(zip(left, memory, base, strict=True)):
            if column and not state[0]:
                continue
            number = seen.get(state)
            if number is None:
                seen[state] = len(columns)
                columns.append(column)
                row_of.append(position)
                weights.append(1)
            else:
                weights[number] += 1
    return _States(
        np.array(row_of, np.int64),
        np.array(columns, np.int64),
        np.array(starts, np.int64),
        np.array(weights, np.int64)[:, None],
    )


def _topology_tier(
    table: DeviceTable, shapes: ShapeTable, rows: Ints, slots: slice, all_left: Ints
) -> Ints | None:
    """[row, shape] whether the shape's devices share an island or a NUMA node; 0 where nobody asked or knows."""
    linked = shapes.linked[slots]
    if not linked.any():
        return None
    knows = (table.islands[rows] > 0) | table.numa_known[rows]
    tier: Ints = np.zeros((len(rows), len(linked)), np.int64)
    if not knows.any():
        return tier
    some, wanted = np.flatnonzero(knows), np.flatnonzero(linked)
    linked_slots = wanted + slots.start
    of_row = table.class_id[rows[some]][:, None], linked_slots[None, :]
    left, memory_left = all_left[some][:, None, :], table.memory_left[rows[some]][:, None, :]
    base = table.base[rows[some]][:, None, :]
    share = shapes.share[of_row][:, :, None]
    proportional = shapes.proportional[linked_slots][None, :, None]
    memory = np.where(proportional, proportional_memory(base, share), shapes.memory[of_row][:, :, None])
    fits = (left >= share) & (memory_left >= memory) & (~proportional | (base >= 0))
    count = shapes.count[linked_slots][None, :]
    found: Ints = np.zeros(fits.shape[:2], np.int64)
    for kind, numbers in ((NUMA_NODE, table.numa[rows[some]]), (ISLAND, table.island[rows[some]])):
        for number in range(int(numbers.max(initial=-1)) + 1):
            found[(fits & (numbers == number)[:, None, :]).sum(axis=2) >= count] = kind
    tier[np.ix_(some, wanted)] = found
    return tier

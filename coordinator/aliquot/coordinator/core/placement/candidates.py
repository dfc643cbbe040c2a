"""What a policy sees: some rows against some shapes, as arrays that broadcast.

Two axes: (row, shape) for what belongs to nodes, (state, shape) for what belongs to devices; an axis is 1 long where
the value does not depend on it. A *state* is a device of a row, or several devices of it that have the same left and so
are interchangeable; `row_of` says which row a state belongs to. One formula therefore serves a few changed rows against
all shapes (an update) and all rows against one shape (a full scan), and gives the same integers in both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.inventory import DeviceTable
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, proportional_memory

DISTINCT_ROWS_MAX = 64
"""Up to so many rows, equal devices are merged: that costs less than scoring them twice."""

COLUMN_LAST = 255

ISLAND = 2
NUMA_NODE = 1


@dataclass(slots=True, eq=False, repr=False)
class Candidates:
    """Rows against shapes. Units: thousandths of a device, thousandths of a CPU."""

    _by_row: Ints
    _by_class: Ints
    _of_row: Ints | slice
    _slots: slice
    rows: Ints = field(init=False)
    """[row] their numbers."""
    all_left: Ints = field(init=False)
    """[row, device] share left; 0 for padding and for devices that can't serve."""
    all_memory: Ints = field(init=False)
    """[row, device] memory left, in bytes."""
    all_usable: Ints = field(init=False)
    """[row, device] the smaller of share left and memory left: what is left of a device as one number."""
    cpu_left: Ints = field(init=False)
    """[row, 1] CPU left, -1 where nothing may be placed; `CPU_UNLIMITED` where the node does not report it."""
    row_of: Ints = field(init=False)
    """[state] position of the state's row in `rows`."""
    starts: Ints = field(init=False)
    """[row] position of each row's first state."""
    left: Ints = field(init=False)
    """[state, 1] share left."""
    memory_left: Ints = field(init=False)
    """[state, 1] memory left, in bytes."""
    usable: Ints = field(init=False)
    """[state, 1] as `all_usable`."""
    taken: Ints = field(init=False)
    """[state or 1, shape] share that a slice takes; more than there is where the class does not suit."""
    memory: Ints = field(init=False)
    """[state or 1, shape] memory that a slice takes, in bytes."""
    fits: Bools = field(init=False)
    """[state, shape] a slice of the shape fits the device."""
    size: Ints = field(init=False)
    """[state or 1, shape] the larger of a slice's share and its part of the memory."""
    count: Ints = field(init=False)
    """[1, shape] slices of one member; 0 for requests of CPU only."""
    cpu: Ints = field(init=False)
    """[1, shape] CPU of one member."""

    @property
    def idle(self) -> Ints:
        """[row, 1] share left on all devices."""
        idle: Ints = np.add.reduce(self.all_left, axis=1, keepdims=True)
        return idle

    @property
    def class_id(self) -> Ints:
        """[row, 1] index of the device class."""
        class_id: Ints = self._by_row[2][:, None]
        return class_id

    @property
    def width(self) -> Ints:
        """[row, 1] devices of the row."""
        width: Ints = self._by_row[3][:, None]
        return width

    @property
    def share(self) -> Ints:
        """[row or 1, shape] share of one slice; 0 where the class does not suit."""
        asked: Ints = self._by_class[3, self._of_row, self._slots]
        return asked


class Feasible(NamedTuple):
    """Candidates with what the engine itself needs of them."""

    candidates: Candidates
    allowed: Bools
    """[row, shape] the member fits the row."""
    tier: Ints | None
    """[row, shape] 2: its slices can share an NVLink island; 1: a NUMA node; None: not asked for."""
    columns_left: Ints
    """[state, 1] 255 less the (first) device of each state, so that the larger of equals is the first."""


def gather(table: DeviceTable, shapes: ShapeTable, rows: Ints, slots: slice, eligible: Bools) -> Feasible:
    """Put `rows` and the shapes in `slots` together; `eligible` is [row, shape].

    This and the policy's formula are the hot path: a decision costs what its NumPy calls cost, not their elements.
    """
    by_device = table.state[:, rows]
    by_row = table.node[:, rows]
    states = _distinct(by_device) if len(rows) <= DISTINCT_ROWS_MAX else _every(*by_device.shape[1:])
    class_id = by_row[2]
    of_row: Ints | slice = class_id
    of_state: Ints | slice
    if len(rows) == 1:
        of_row = of_state = slice(class_id[0], class_id[0] + 1 or None)
    else:
        of_state = class_id[states.row_of]
    c = Candidates(by_row, shapes.by_class, of_row, slots)
    c.rows = rows
    c.all_left, c.all_memory, c.all_usable = by_device[0], by_device[1], by_device[2]
    c.row_of, c.starts = states.row_of, states.starts
    c.left, memory_left, c.usable, base = by_device.reshape(4, -1)[:, states.flat, None]
    c.cpu, host, c.count = shapes.plain[:, None, slots]
    share, memory, c.size, _ = shapes.by_class[:, of_state, slots]
    fits = c.left >= share
    if by_row[4].any():
        proportional = shapes.proportional[slots][None, :]
        memory = np.where(proportional, proportional_memory(base, share), memory)
        fits &= ~proportional | (base >= 0)
    fits &= memory_left >= memory
    c.fits, c.memory_left, c.taken, c.memory = fits, memory_left, share, memory
    cpu_left, host_left = by_row[:2, :, None]
    c.cpu_left = cpu_left
    allowed = np.add.reduceat(fits * states.weight, states.starts, axis=0) >= c.count
    allowed &= eligible
    allowed &= cpu_left >= c.cpu
    if shapes.any_host:
        allowed &= host_left >= host
    tier: Ints | None = None
    if shapes.any_linked:
        if table.knows_links:
            tier = _topology_tier(table, shapes, rows, slots, c.all_left)
        required = shapes.require_island[slots][None, :]
        allowed &= ~required if tier is None else ~required | (tier == ISLAND)
    return Feasible(c, allowed, tier, states.columns_left)


class _States(NamedTuple):
    """Device states of some rows, flat."""

    row_of: Ints
    columns_left: Ints
    """[state, 1] 255 less the device."""
    flat: Ints
    """Position of the state's device in [row, device] laid out flat."""
    starts: Ints
    weight: Ints
    """[state, 1] devices in each state."""


def _every(rows: int, width: int) -> _States:
    """Each device is a state of its own."""
    flat = np.arange(rows * width)
    return _States(flat // width, COLUMN_LAST - (flat % width)[:, None], flat, flat[::width], np.ones((1, 1), np.int64))


def _distinct(by_device: Ints) -> _States:
    """Equal devices of a row as one state, without those that have nothing left.

    The first device of a row is always there: requests without devices are scored in its state.
    """
    entries: list[tuple[int, int, int, int]] = []
    starts: list[int] = []
    lefts, memories, _, bases = by_device.tolist()
    width = by_device.shape[2]
    for position, (left, memory, base) in enumerate(zip(lefts, memories, bases, strict=True)):
        starts.append(len(entries))
        weights: dict[tuple[int, int, int], int] = {}
        columns: dict[tuple[int, int, int], int] = {}
        for column, state in enumerate(zip(left, memory, base, strict=True)):
            if state in weights:
                weights[state] += 1
            elif state[0] or not column:
                weights[state] = 1
                columns[state] = column
        entries += [(position, COLUMN_LAST - c, position * width + c, weights[s]) for s, c in columns.items()]
    row_of, columns_left, flat, weight = np.array(entries, np.int64).T[:, :, None]
    return _States(row_of[:, 0], columns_left, flat[:, 0], np.array(starts, np.int64), weight)


def _topology_tier(table: DeviceTable, shapes: ShapeTable, rows: Ints, slots: slice, all_left: Ints) -> Ints | None:
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

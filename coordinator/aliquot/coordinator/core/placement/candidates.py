"""What a policy sees: some rows against some shapes, as arrays that broadcast.

Every array has the axes (row, shape) or (row, shape, column), an axis being 1 long where its value does not
depend on it. One formula therefore serves one row against all shapes (an update), all rows against one shape
(a full scan) and a block of both (a rebuild), and gives the same integers in each.

Columns are devices, or, where one row is scored, its distinct device states: `left` and its siblings describe
the columns, `all_left` and `all_usable` always every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.inventory import DeviceTable
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, proportional_memory
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI

CPU_SCORED_MAX = 1 << 30
"""More CPU than this (a node that doesn't report it) counts as this in scores, so that products stay in 64
bits."""


class Extent(NamedTuple):
    """The largest node there is, by device class and by size."""

    leasable_bytes: Ints
    """[class] leasable memory; the last entry stands for rows without devices."""
    widest_milli: int
    largest_cpu_milli: int


@dataclass(slots=True)
class Candidates:
    """Rows against shapes. Units: thousandths of a device, thousandths of a CPU."""

    all_left: Ints
    """[row, 1, device] share left; 0 for padding and for devices that can't serve."""
    all_usable: Ints
    """[row, 1, device] the smaller of share left and memory left: what is left of the device as one number.
    """
    left: Ints
    """[row, 1, column] share left of the devices to choose from."""
    usable: Ints
    """[row, 1, column] as `all_usable`, of the devices to choose from."""
    fits: Bools
    """[row, shape, column] a slice of the shape fits the device."""
    share: Ints
    """[row or 1, shape] share of one slice."""
    size: Ints
    """[row or 1, shape] the larger of a slice's share and its part of the memory."""
    count: Ints
    """[1, shape] slices of one member."""
    cpu: Ints
    """[1, shape] CPU of one member."""
    cpu_left: Ints
    """[row, 1] CPU left, at most `CPU_SCORED_MAX`."""
    class_id: Ints
    """[row, 1] index of the device class."""
    kind: Ints
    """[1, shape] `member_kind` of the shape."""
    kinds: Ints
    """[row, 1] bit set of the kinds on the node."""
    width: Ints
    """[row, 1] devices of the row."""
    rows: Ints
    """Numbers of the rows."""
    extent: Extent
    """The largest node of the pool, to which some policies scale."""


def usable_of(left: Ints, memory_left: Ints, leasable: Ints) -> Ints:
    """The smaller of share left and memory left in thousandths."""
    memory_milli = memory_left * WHOLE_SHARE_MILLI // np.maximum(leasable, 1)
    return np.maximum(np.minimum(left, memory_milli), 0)


@dataclass(slots=True)
class Feasible:
    """Candidates with what the engine itself needs of them."""

    candidates: Candidates
    allowed: Bools
    """[row, shape] the member fits the row."""
    tier: Ints | None
    """[row, shape] 2: its slices can share an NVLink island; 1: a NUMA node; None: nobody asked."""
    first_column: list[int] | None
    """Device index of each column, where columns are distinct states."""


def gather(
    table: DeviceTable,
    shapes: ShapeTable,
    extent: Extent,
    rows: Ints,
    slots: slice,
    eligible: Bools,
    *,
    distinct: bool = False,
) -> Feasible:
    """Put `rows` and the shapes in `slots` together. `distinct` (for one row): columns are device states, not
    devices.

    `eligible` is [row, shape].
    """
    classes = table.class_id[rows]
    left = table.share_left[rows][:, None, :]
    memory_left = table.memory_left[rows][:, None, :]
    usable = usable_of(left, memory_left, extent.leasable_bytes[classes][:, None, None])
    base = table.base[rows][:, None, :]
    foreign = bool(table.has_foreign[rows].any())
    all_left, all_usable = left, usable
    weight: Ints | None = None
    first_column: list[int] | None = None
    linked = shapes.linked[slots]
    topology = bool(linked.any()) and bool((table.islands[rows] > 0).any() or table.numa_known[rows].any())
    if distinct and not foreign and not topology:
        first_column, counts = _distinct(left[0, 0].tolist(), memory_left[0, 0].tolist())
        left, memory_left, usable = (
            left[:, :, first_column],
            memory_left[:, :, first_column],
            usable[:, :, first_column],
        )
        weight = np.array(counts, np.int64)
    share = shapes.share[classes, slots]
    fits = left >= share[:, :, None]
    if foreign:
        proportional = shapes.proportional[slots][None, :, None]
        memory = np.where(
            proportional,
            proportional_memory(base, share[:, :, None]),
            shapes.memory[classes, slots][:, :, None],
        )
        fits &= (memory_left >= memory) & (~proportional | (base >= 0))
    else:
        fits &= memory_left >= shapes.memory[classes, slots][:, :, None]
    count = shapes.count[slots][None, :]
    fitting = fits.sum(axis=2) if weight is None else fits @ weight
    cpu = shapes.cpu[slots][None, :]
    cpu_left = table.cpu_left[rows][:, None]
    allowed = eligible & (fitting >= count) & (cpu_left >= cpu)
    allowed &= (table.host_left[rows][:, None] >= shapes.host[slots][None, :]) & table.grantable[rows][:, None]
    tier: Ints | None = None
    if topology:
        tier = _topology_tier(table, rows, fits, count)
        tier *= linked[None, :]
        allowed &= ~shapes.require_island[slots][None, :] | (tier == 2)
    candidates = Candidates(
        all_left=all_left,
        all_usable=all_usable,
        left=left,
        usable=usable,
        fits=fits,
        share=share,
        size=shapes.size[classes, slots],
        count=count,
        cpu=cpu,
        cpu_left=np.minimum(cpu_left, CPU_SCORED_MAX),
        class_id=classes[:, None],
        kind=shapes.kind[slots][None, :],
        kinds=table.kinds[rows][:, None],
        width=table.width[rows][:, None],
        rows=rows,
        extent=extent,
    )
    return Feasible(candidates, allowed, tier, first_column)


def _distinct(left: list[int], memory_left: list[int]) -> tuple[list[int], list[int]]:
    """First device of each distinct state with something left, and how many devices are in it."""
    seen: dict[tuple[int, int], int] = {}
    columns: list[int] = []
    counts: list[int] = []
    for column, state in enumerate(zip(left, memory_left, strict=True)):
        if not state[0]:
            continue
        position = seen.get(state)
        if position is None:
            seen[state] = len(columns)
            columns.append(column)
            counts.append(1)
        else:
            counts[position] += 1
    return (columns, counts) if columns else ([0], [1])


def _topology_tier(table: DeviceTable, rows: Ints, fits: Bools, count: Ints) -> Ints:
    """Do `count` fitting devices share an island (2) or a NUMA node (1)? For rows that know."""
    tier = np.zeros(fits.shape[:2], np.int64)
    numa = table.numa[rows][:, None, :]
    for node in range(int(numa.max()) + 1):
        tier[(fits & (numa == node)).sum(axis=2) >= count] = 1
    tier *= table.numa_known[rows][:, None]
    island = table.island[rows][:, None, :]
    for number in range(int(table.islands[rows].max())):
        tier[(fits & (island == number)).sum(axis=2) >= count] = 2
    return tier

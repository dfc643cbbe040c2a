"""What a remainder of a device is worth: the most that can be cut from it at the prices of what arrives.

A remainder is a share and an amount of memory. Where nobody states memory, share alone says it all, in thousandths;
else both are counted in `GRAINS`th parts of the device, rounded to the nearest: worths only rank places, and what fits
is decided to the byte elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.placement.shapes import Ints, shape_of
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI, Demand

GRAINS = 120
"""Divides by all that people divide devices by (2 to 6, 8, 10), and a table of share by memory stays small."""

KEPT_MAX = 64
"""Tables kept in memory, the latest ones."""

Number = TypeVar("Number", bound=np.generic)


def parts_of(*, by_memory: bool) -> tuple[int, int]:
    """(parts of the share, parts of the memory) in which remainders are counted; 0: memory does not matter."""
    return (GRAINS, GRAINS) if by_memory else (WHOLE_SHARE_MILLI, 0)


def slice_on(device_class: DeviceClass, sort: Demand) -> tuple[int, int] | None:
    """(share, memory) that a slice takes of a device of this class by the first alternative that names it, or None."""
    for models in sort.models or ((),):
        found = device_class.slice_of(shape_of(sort, models))
        if found is not None:
            return found
    return None


def cuts(device_class: DeviceClass, sorts: Sequence[Demand], *, by_memory: bool) -> tuple[list[int], Ints, Ints]:
    """(numbers of the sorts that fit, their shares, their memories), in parts of a device of this class."""
    parts, memory_parts = parts_of(by_memory=by_memory)
    fitting: list[int] = []
    sizes: list[tuple[int, int]] = []
    for number, sort in enumerate(sorts):
        found = slice_on(device_class, sort)
        if found is None:
            continue
        share, memory = found
        whole, leasable = WHOLE_SHARE_MILLI, device_class.leasable_bytes
        fitting.append(number)
        sizes.append(
            (
                max((share * parts + whole // 2) // whole, 1),
                min((memory * memory_parts + leasable // 2) // leasable, memory_parts),
            )
        )
    both = np.array(sizes, np.int64).reshape(-1, 2)
    return fitting, both[:, 0], both[:, 1]


def most(
    shares: Ints, memories: Ints, values: npt.NDArray[Number], share_parts: int, memory_parts: int
) -> npt.NDArray[Number]:
    """[share left, memory left, λ] the largest sum of `values` [sort, λ] that can be cut from a remainder, each sort as
    often as it fits: an unbounded knapsack with two constraints.
    """
    order = np.argsort(shares, kind="stable")
    shares, memories, values = shares[order], memories[order], values[order]
    best = np.zeros((share_parts + 1, memory_parts + 1, values.shape[1]), values.dtype)
    source = np.arange(memory_parts + 1)[None, :] - memories[:, None]
    short = source < 0
    source = np.maximum(source, 0)
    fitting = np.searchsorted(shares, np.arange(share_parts + 1), side="right").tolist()
    for left in range(1, share_parts + 1):
        row: npt.NDArray[Any] = best[left - 1].copy()
        n = fitting[left]
        if n:
            cut: npt.NDArray[Any] = best[(left - shares[:n])[:, None], source[:n]]
            cut += values[:n, None, :]
            cut[short[:n]] = 0
            np.maximum(row, cut.max(axis=0), out=row)
            np.maximum.accumulate(row, axis=0, out=row)
        best[left] = row
    return best


_kept: dict[tuple[PriceTable, DeviceClass], Ints] = {}


def worth_on(table: PriceTable, device_class: DeviceClass) -> Ints:
    """[share left, memory left, λ] in millionths of a device, for devices of one class. Takes some 30 ms where memory
    counts, unless it is known already (`remember`).
    """
    known = _kept.get((table, device_class))
    if known is None:
        known = _from_sorts(table, device_class) if table.sorts else _from_steps(table)
        remember(table, device_class, known)
    return known


def remember(table: PriceTable, device_class: DeviceClass, worth: Ints) -> None:
    """Keep what another process has worked out."""
    while len(_kept) >= KEPT_MAX:
        del _kept[next(iter(_kept))]
    _kept[table, device_class] = worth


def _from_sorts(table: PriceTable, device_class: DeviceClass) -> Ints:
    sorts = [each.sort for each in table.sorts]
    fitting, shares, memories = cuts(device_class, sorts, by_memory=table.by_memory)
    values = np.array([table.sorts[number].worths for number in fitting], np.int64).reshape(-1, len(table.cpu_prices))
    return most(shares, memories, values, *parts_of(by_memory=table.by_memory))


def _from_steps(table: PriceTable) -> Ints:
    worth = np.zeros((WHOLE_SHARE_MILLI + 1, 1, len(table.cpu_prices)), np.int64)
    for column, steps in enumerate(table.steps):
        for start, value in steps:
            worth[start:, 0, column] = value
    return worth

"""What a remainder of a device is worth: the most that can be cut from it at the prices of what arrives.

A remainder is a share and an amount of memory. Where nobody states memory, share alone says it all, in thousandths;
else both are counted in `GRAINS`th parts of the device, rounded to the nearest: worths only rank places, and what fits
is decided to the byte elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.mix import CPU_MILLI
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.placement.shapes import Ints, shapes_of
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

GRAINS = 120
"""Divides by all that people divide devices by (2 to 6, 8, 10), and a table of share by memory stays small."""

KEPT_MAX = 4
"""Price tables whose worths are kept in memory, the latest ones, each for all classes."""

CPU_STEPS_MAX = 256
"""What free devices are worth together is known for so many amounts of CPU."""

GIB = 1 << 30

Number = TypeVar("Number", bound=np.generic)


def parts_of(*, by_memory: bool) -> tuple[int, int]:
    """(parts of the share, parts of the memory) in which remainders are counted; 0: memory does not matter."""
    return (GRAINS, GRAINS) if by_memory else (WHOLE_SHARE_MILLI, 0)


def like(device_class: DeviceClass) -> DeviceClass:
    """What stands for all devices that differ from these by less than a GiB: they share one table of worth."""
    gib = -(-max(device_class.leasable_bytes, 1) // GIB)
    return device_class._replace(leasable_bytes=gib * GIB)


def slice_on(device_class: DeviceClass, sort: Demand) -> tuple[int, int] | None:
    """(share, memory) that a slice takes of a device of this class by the first alternative that names it, or None."""
    for shape in shapes_of(sort):
        found = device_class.slice_of(shape)
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


_kept: OrderedDict[PriceTable, dict[DeviceClass, Ints]] = OrderedDict()


def worth_on(table: PriceTable, device_class: DeviceClass) -> Ints:
    """[share left, memory left, λ] in millionths of a device, for devices like these. Takes some 30 ms where memory
    counts, unless it is known already (`remember`).
    """
    of = like(device_class)
    known = _kept.get(table, {}).get(of)
    if known is None:
        known = _from_steps(table) if table.steps else _from_sorts(table, of)
        remember(table, of, known)
    return known


def remember(table: PriceTable, device_class: DeviceClass, worth: Ints) -> None:
    """Keep what another process has worked out, of devices like these."""
    _kept.setdefault(table, {})[like(device_class)] = worth
    if len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)


def cpu_steps(sorts: Sequence[Demand], devices_max: int) -> tuple[int, int]:
    """(a step of CPU in thousandths, steps beyond which more of it changes nothing) for places of these sorts on a node
    with so many devices.
    """
    most_milli = max((sort.cpu_milli * (devices_max // sort.count) for sort in sorts), default=0)
    step = CPU_MILLI * max(-(-most_milli // (CPU_MILLI * CPU_STEPS_MAX)), 1)
    return step, -(-most_milli // step)


def places(
    device_class: DeviceClass, sorts: Sequence[Demand], step: int, devices_max: int
) -> tuple[list[int], Ints, Ints]:
    """(numbers of the sorts for several that fit, their devices, their CPU in steps)."""
    fitting = [
        number
        for number, sort in enumerate(sorts)
        if sort.count <= devices_max and slice_on(device_class, sort) is not None
    ]
    devices = np.array([sorts[number].count for number in fitting], np.int64)
    return fitting, devices, np.array([-(-sorts[number].cpu_milli // step) for number in fitting], np.int64)


def together_on(table: PriceTable, device_classes: Iterable[DeviceClass], devices_max: int) -> list[Ints]:
    """[class][free devices of a node, CPU left in `cpu_steps`, λ] what they are worth together beyond what each is
    worth by itself: of the ways to divide them into places for several, the best one. A millisecond or two for each
    different one.
    """
    sorts = [each.sort for each in table.together]
    step, steps = cpu_steps(sorts, devices_max)
    known: dict[tuple[bytes, ...], Ints] = {}
    found: list[Ints] = []
    for device_class in device_classes:
        fitting, devices, cpu = places(like(device_class), sorts, step, devices_max)
        alone = worth_on(table, device_class)[-1, -1]
        worths = np.array([table.together[number].worths for number in fitting], np.int64).reshape(-1, len(alone))
        gains = worths - devices[:, None] * alone
        paying = (gains > 0).any(axis=1)
        gains, devices, cpu = np.maximum(gains[paying], 0), devices[paying], cpu[paying]
        key = gains.tobytes(), devices.tobytes(), cpu.tobytes()
        if key not in known:
            known[key] = most(devices, cpu, gains, devices_max, steps)
        found.append(known[key])
    return found


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

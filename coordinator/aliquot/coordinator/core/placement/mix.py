"""The mix of requests that arrive: what policies learn from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.inventory.records import CPU_UNLIMITED, DeviceClass
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

Ints = npt.NDArray[np.int64]

CPU_MILLI = 1000

TYPES_MAX = 1024
"""More types than this and the rarest are forgotten."""

WEIGHT_MAX = 16_384
"""When the counts reach this, all are halved: the mix follows the last few thousand requests."""


def mix_type(demand: Demand) -> Demand:
    """What of a demand a policy can learn from; equal types are counted together."""
    return Demand(
        count=demand.count,
        share_milli=demand.share_milli,
        memory_bytes=demand.memory_bytes,
        models=demand.models,
        vendor=demand.vendor,
        mig_profile=demand.mig_profile,
        gang_size=demand.gang_size,
        cpu_milli=demand.cpu_milli,
        vendors=demand.vendors,
        or_mig=demand.or_mig,
    )


def by_share(types: Mapping[Demand, int], reference: int) -> dict[Demand, int]:
    """The same types with memory as the part of a typical device that it is (`reference_bytes`)."""
    result: dict[Demand, int] = {}
    for demand, count in types.items():
        kind = demand
        if demand.memory_bytes and reference and not demand.mig_profile:
            part = min(-(-demand.memory_bytes * WHOLE_SHARE_MILLI // reference), WHOLE_SHARE_MILLI)
            kind = msgspec.structs.replace(demand, share_milli=max(demand.share_milli, part), memory_bytes=0)
        result[kind] = result.get(kind, 0) + count
    return result


class ClassTotals(msgspec.Struct, frozen=True, array_like=True):
    """How many devices of a class there are."""

    device_class: DeviceClass
    devices: int
    idle_milli: int
    """What is left of them all, in thousandths of a device."""
    nodes: tuple[tuple[int, int, int], ...] = ()
    """(devices that are free as a whole, CPU left, nodes like that) of nodes that have two such devices or more."""
    empty_nodes: tuple[tuple[int, int, int], ...] = ()
    """The same, were all nodes empty."""


class MixSummary(msgspec.Struct, frozen=True):
    """What the price learner is sent: integers only, so that it can cross a process."""

    noted: int
    """Arrivals counted since the start; a learner that saw this number already has nothing to do."""
    types: tuple[tuple[Demand, int], ...]
    classes: tuple[ClassTotals, ...]


class ArrivalMix:
    """Counts of recent request types; bounded, and the past fades."""

    def __init__(self) -> None:
        self._counts: dict[Demand, int] = {}
        self._total = 0
        self.noted = 0
        """Requests noted in all."""

    def note(self, demand: Demand) -> None:
        """Count one arrival."""
        kind = mix_type(demand)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._total += 1
        self.noted += 1
        if self._total >= WEIGHT_MAX or len(self._counts) > TYPES_MAX:
            self._halve()

    @property
    def counts(self) -> dict[Demand, int]:
        """The types and how often they came of late."""
        return dict(self._counts)

    def _halve(self) -> None:
        halved = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
        self._counts, self._total = halved, sum(halved.values())

    def summary(self, inventory: Inventory) -> MixSummary:
        """The types and their counts, the most frequent first."""
        types = tuple(sorted(self._counts.items(), key=lambda item: -item[1]))
        return MixSummary(self.noted, types, class_totals(inventory))


def class_totals(inventory: Inventory) -> tuple[ClassTotals, ...]:
    """The devices of a pool, by class: of every class that it knows, whether it has devices now or not."""
    table, rows = inventory.table, inventory.table.rows
    devices: Ints = np.zeros(len(inventory.classes) + 1, np.int64)
    idle: Ints = np.zeros(len(inventory.classes) + 1, np.int64)
    class_id, widths, usable = table.class_id[:rows], table.width[:rows], table.usable[:rows]
    np.add.at(devices, class_id, widths)
    np.add.at(idle, class_id, usable.sum(axis=1))
    free = np.add.reduce(usable == WHOLE_SHARE_MILLI, axis=1)
    nodes = _by_class(class_id, free, table.cpu_left[:rows], len(devices))
    capacity = table.cpu_capacity[:rows]
    empty_nodes = _by_class(class_id, widths, np.where(capacity < 0, CPU_UNLIMITED, capacity), len(devices))
    return tuple(
        ClassTotals(device_class, int(devices[of]), int(idle[of]), tuple(nodes[of]), tuple(empty_nodes[of]))
        for of, device_class in enumerate(inventory.classes)
    )


def _by_class(class_id: Ints, free: Ints, cpu: Ints, classes: int) -> list[list[tuple[int, int, int]]]:
    """[class] (free devices, CPU in thousandths but rounded down to whole ones, rows like that)."""
    several = np.flatnonzero(free > 1)
    cores = np.clip(cpu[several] // CPU_MILLI, 0, CPU_UNLIMITED // CPU_MILLI)
    keys = (class_id[several] << 44) | (free[several] << 32) | cores
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(classes)]
    for key, rows in zip(*(each.tolist() for each in np.unique(keys, return_counts=True)), strict=True):
        found[key >> 44].append((key >> 32 & 0xFFF, (key & 0xFFFFFFFF) * CPU_MILLI, rows))
    return found


def reference_bytes(inventory: Inventory) -> int:
    """Leasable memory of the device class with the most devices, MIG instances apart; 0 in an empty pool."""
    table = inventory.table
    devices = [0] * len(inventory.classes)
    for class_id, width in zip(table.class_id[: table.rows].tolist(), table.width[: table.rows].tolist(), strict=True):
        if class_id >= 0 and not inventory.classes[class_id].mig_profile:
            devices[class_id] += width
    if not any(devices):
        return 0
    return inventory.classes[
        max(range(len(devices)), key=lambda class_id: (devices[class_id], -class_id))
    ].leasable_bytes

"""Fragmentation: idle share that the requests which arrive can't use where it is.

For one request type t on one node, all idle share is fragmented if t can't run there at all (other model, too little
CPU, too few devices with enough left); otherwise the idle share of the devices that are too full for t. A node's
fragmentation is the mean over the mix. Everything is integer: weights are counts, and the sum stays unscaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory import DeviceClass, Inventory
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.mix import by_share, reference_bytes
from aliquot.coordinator.core.placement.shapes import Bools, Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

Floats = npt.NDArray[np.float32]

STEP_ROWS = 256
"""Nodes measured at once: about a millisecond for the forty or so types that make up most of a mix."""

TYPES_MAX = 64


class Mix:
    """Request types with weights, as arrays along the last axis."""

    def __init__(self, mix: tuple[tuple[Demand, int], ...]) -> None:
        self.types = tuple(demand for demand, _ in mix)
        self.total_weight = sum(weight for _, weight in mix)
        self._weight = np.array([weight for _, weight in mix], np.float64)
        self._cpu: Ints = np.array([d.cpu_milli for d in self.types], np.int64)
        self._count: Floats = np.array([max(d.count, 1) for d in self.types], np.float32)
        self._cpu_only: Bools = np.array([d.count == 0 for d in self.types], np.bool_)
        left, share = np.arange(WHOLE_SHARE_MILLI + 1)[:, None], np.array([_share(d) for d in self.types], np.int64)
        self._of_left: Floats = np.hstack([left >= share, np.where(left < share, left, 0)]).astype(np.float32)
        """[left, type, and type again] of a device with so much left: whether it serves the type, and the idle share
        that is lost to the type."""
        self._unsuited: Bools = np.ones((0, len(self.types)), np.bool_)

    def learn_classes(self, inventory: Inventory) -> None:
        """Take note of which device classes suit which type; call when classes were added."""
        classes = inventory.classes
        if len(self._unsuited) == len(classes) + 1:
            return
        suits = np.zeros((len(classes) + 1, len(self.types)), np.bool_)
        for class_id, device_class in enumerate(classes):
            for number, demand in enumerate(self.types):
                named = [model for models in demand.models for model in models]
                suits[class_id, number] = (
                    (not named or device_class.model in named)
                    and demand.takes_vendor(device_class.vendor)
                    and _serves(device_class, demand)
                )
        self._unsuited = ~suits | self._cpu_only

    def of_rows(self, left: Ints, cpu_left: Ints, class_id: Ints) -> Ints:
        """[row] weighted fragmentation in milli-devices times `total_weight`, from [row, device] share left and [row]
        CPU left and class.
        """
        of_row = self._sums(left)
        useless = self._unsuited[class_id] | (cpu_left[:, None] < self._cpu)
        return self._weigh(of_row, left.sum(axis=1)[:, None], useless)

    def _sums(self, left: Ints) -> Floats:
        """[row, type, and type again] devices with enough left, and idle share on the others."""
        sums: Floats = self._of_left.take(left, axis=0).sum(axis=1)
        return sums

    def _weigh(self, sums: Floats, total: Ints, useless: Bools) -> Ints:
        """Every number on the way is a whole one that its format holds exactly: in 32 bits those of one node, which has
        at most 255 devices, in 64 the sums over the mix. Floats, because only their products have a fast routine.
        """
        types = len(self.types)
        useless |= sums[..., :types] < self._count
        lost = np.where(useless, total.astype(np.float32), sums[..., types:])
        fragmented: Ints = (lost @ self._weight).astype(np.int64)
        return fragmented


class Fragmentation(NamedTuple):
    """Of one (pool, model): idle share, and the part of it that the mix can't use, on average over the mix."""

    idle_milli: int
    fragmented_milli: int

    @property
    def ratio(self) -> float:
        """0: everything idle is of use to everybody; 1: to nobody."""
        return self.fragmented_milli / self.idle_milli if self.idle_milli else 0.0


class Sums:
    """Fragmentation of some rows, added up by (pool, model); only nodes that accept grants count."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[int]] = {}

    def add(self, inventory: Inventory, mix: Mix, rows: Ints) -> None:
        """Count these rows. Without a mix nothing is counted: nobody knows what would be useful."""
        table = inventory.table
        rows = rows[table.grantable[rows] & (table.width[rows] > 0)]
        if not mix.total_weight or not len(rows):
            return
        mix.learn_classes(inventory)
        left = table.share_left[rows]
        idle = left.sum(axis=1)
        fragmented = mix.of_rows(left, table.cpu_left[rows], table.class_id[rows])
        pools, classes = table.pool[rows].tolist(), table.class_id[rows].tolist()
        for pool, class_id, idle_milli, weighed in zip(pools, classes, idle.tolist(), fragmented.tolist(), strict=True):
            total = self._sums.setdefault((inventory.pools[pool], inventory.classes[class_id].model), [0, 0])
            total[0] += idle_milli
            total[1] += weighed

    def by_class(self, mix: Mix) -> dict[tuple[str, str], Fragmentation]:
        """The result, by (pool, model)."""
        return {
            key: Fragmentation(idle_milli, weighed // mix.total_weight)
            for key, (idle_milli, weighed) in sorted(self._sums.items())
        }


def measure(inventory: Inventory, mix: Mix) -> dict[tuple[str, str], Fragmentation]:
    """Fragmentation by (pool, model), over nodes that accept grants. Empty without a mix."""
    sums = Sums()
    sums.add(inventory, mix, np.arange(inventory.table.rows))
    return sums.by_class(mix)


def typical(counts: Mapping[Demand, int], coverage_milli: int = 950) -> tuple[tuple[Demand, int], ...]:
    """The most frequent types that together make up `coverage_milli` thousandths of all, with their counts."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], _type_key(item[0])))
    total = sum(counts.values())
    kept: list[tuple[Demand, int]] = []
    so_far = 0
    for demand, count in ordered:
        kept.append((demand, count))
        so_far += count
        if so_far * 1000 >= total * coverage_milli:
            break
    return tuple(kept)


def _serves(device_class: DeviceClass, demand: Demand) -> bool:
    """MIG instances serve demands that name their profile, and parts of cards that are no larger."""
    if not device_class.mig_profile or demand.mig_profile:
        return demand.mig_profile == device_class.mig_profile
    return demand.share_milli < WHOLE_SHARE_MILLI and demand.memory_bytes <= device_class.leasable_bytes


def _share(demand: Demand) -> int:
    """The share a device must have left. Of a MIG instance any at all, for it is taken whole."""
    if demand.mig_profile:
        return 1
    return demand.share_milli or (WHOLE_SHARE_MILLI if demand.count else 0)


def _type_key(demand: Demand) -> tuple[int, int, int, tuple[tuple[str, ...], ...]]:
    """Larger types first among equally frequent ones."""
    return -demand.cpu_milli, -_share(demand), -demand.count, demand.models


class FragmentationSampler:
    """Measures one engine's pool, again and again: a few rows at a time, so that no decision waits for it.

    A pass takes many steps, and the pool changes meanwhile: the figure is an average over the time of the pass.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.latest: dict[tuple[str, str], Fragmentation] = {}
        """By (pool, model), as of the last whole pass; empty as long as nothing has arrived to be of use to."""
        self._mix = Mix(())
        self._sums = Sums()
        self._row = 0
        self._layout = -1

    def step(self) -> bool:
        """Measure the next rows; True when that ended a pass."""
        inventory = self.engine.inventory
        if self._row == 0 or self._layout != inventory.layout_version:
            types = typical(by_share(self.engine.mix.counts, reference_bytes(inventory)))
            self._mix, self._sums, self._row = Mix(types[:TYPES_MAX]), Sums(), 0
            self._layout = inventory.layout_version
        end = min(self._row + STEP_ROWS, inventory.table.rows)
        self._sums.add(inventory, self._mix, np.arange(self._row, end))
        self._row = end
        if end < inventory.table.rows:
            return False
        self.latest = self._sums.by_class(self._mix)
        self._row = 0
        return True

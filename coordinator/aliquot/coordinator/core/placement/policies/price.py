"""Prices: place where the node loses the least value, a device remainder being worth what the mix can make of it.

A linear programme over the requests that arrive (`upkeep.price_programme`) gives every sort of slice a price. From
those follows what a remainder of r is worth on a device of class c, `worth[c, r, λ]`, when CPU costs λ. A node is worth

    V = min over λ of (Σ over devices of worth[class, left, λ] + together[class, free, CPU left, λ] + λ · CPU left),

where `together` is what the free devices are worth for requests for several, beyond what each of them is worth: the
Lagrangian bound on what can still be sold there, and a placement costs the fall of V. Remainders that nothing
arriving fits into are worth nothing, so they are made where it does not matter, and slices that fit into them go there;
what other requests need more is worth more, so that large memory, and many devices of one node, are kept for those who
ask for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.mix import CPU_MILLI
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.prices import PriceTable, linear_prices
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.placement.worth import cpu_steps, like, parts_of, together_on, worth_on
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI

GRAIN = 4096
"""Falls of V are compared in steps of 0.004 devices, a power of two; what is smaller decides only between equals."""

CORES_MAX = 1023
"""Before the first prices, nodes with much CPU are kept; fit and emptiness mostly come first. Under prices that were
learnt, which know what CPU is worth, it cost 5 points on the openb list."""


class Worths(NamedTuple):
    """Prices for the classes of a pool, as arrays."""

    worth: Ints
    """[table, share left, memory left, λ] in millionths of a device; the last table is for rows without devices."""
    together: Ints
    """[table, free devices, steps of CPU left, λ] what these add; of no length: nothing."""
    cpu_step: int
    """In thousandths of a CPU."""
    table_of: Ints
    """[class] and one more for rows without devices: which table. Classes that differ by less than a GiB share one."""
    leasable: Ints
    """[class] and one more: memory of a device in bytes, at least 1."""
    cpu_prices: Ints
    """[λ]"""
    share_parts: int
    memory_parts: int
    """0: what is left of a device is one number, the smaller of share and memory in thousandths."""
    cores_max: int
    """So many CPU cores left count at most where nodes are otherwise equal, the fewer the better."""


class Price(Policy):
    """The default policy."""

    name = "price"
    summary = "least fall of the node's value at the prices learnt from what arrives (default)"
    per_device = True

    def __init__(self) -> None:
        self._classes: tuple[DeviceClass, ...] = ()
        self._columns = 1
        self.set_prices(linear_prices())

    def set_prices(self, table: PriceTable) -> None:
        """Take a new table; cached scores are thrown away."""
        self.table = table
        self._lay_out()

    def learn_classes(self, inventory: Inventory) -> None:
        """See `Policy.learn_classes`."""
        columns = inventory.table.columns
        if len(inventory.classes) != len(self._classes) or columns != self._columns:
            self._classes, self._columns = tuple(inventory.classes), columns
            self._lay_out()

    def _lay_out(self) -> None:
        numbers: dict[DeviceClass, int] = {}
        table_of = [numbers.setdefault(like(each), len(numbers)) for each in self._classes]
        tables = [worth_on(self.table, each) for each in numbers]
        share_parts, memory_parts = parts_of(by_memory=self.table.by_memory)
        prices = np.array(self.table.cpu_prices, np.int64)
        nothing: Ints = np.zeros((share_parts + 1, memory_parts + 1, len(prices)), np.int64)
        leasable = np.array([*(max(each.leasable_bytes, 1) for each in self._classes), 1], np.int64)
        of = np.array([*table_of, len(tables)], np.int64)
        several = together_on(self.table, numbers, self._columns)
        together: Ints = np.zeros((0, 0, 0, 0), np.int64)
        if any(each.any() for each in several):
            together = np.stack([*several, np.zeros_like(several[0])])
        step, _ = cpu_steps([each.sort for each in self.table.together], self._columns)
        worth = np.stack([*tables, nothing])
        cores_max = 0 if self.table.version else CORES_MAX
        self.worths = Worths(worth, together, step, of, leasable, prices, share_parts, memory_parts, cores_max)
        self.version += 1

    def device_scores(self, c: Candidates) -> Ints:
        """Minus the cost in millionths of a device: the fall of V in grains, then fit, then emptiness."""
        w, row_of = self.worths, c.row_of
        class_id = c.class_id[:, 0]
        table, leasable = w.table_of[class_id], w.leasable[class_id]
        lambdas = w.cpu_prices[:, None]
        rest = c.usable - c.size
        if w.memory_parts:
            at = self._parts(c.all_left, c.all_memory, leasable[:, None])
            of, by_state = table[row_of][:, None], leasable[row_of][:, None]
            here = self._parts(c.left, c.memory_left, by_state)
            there = self._parts(c.left - c.taken, c.memory_left - c.memory, by_state)
        else:
            zero: Ints = np.zeros((1, 1), np.int64)
            at, here, there = (c.all_usable, zero), (c.usable, zero), (np.maximum(rest, 0), zero)
            of = table[row_of][:, None]
        # λ last in the table, first in what follows.
        before = np.moveaxis(w.worth[table[:, None], at[0], at[1]].sum(axis=1), -1, 0)
        before += lambdas * c.cpu_left[:, 0]
        after = np.moveaxis(w.worth[of, there[0], there[1]] - w.worth[of, here[0], here[1]], -1, 0)
        after *= c.count
        after += before.take(row_of, axis=1)[:, :, None]
        after -= lambdas[:, :, None] * c.cpu
        value = before.min(axis=0)
        if len(w.together):
            free = np.add.reduce(c.all_usable == WHOLE_SHARE_MILLI, axis=1)
            value = (before + w.together[table, free, self._steps(c.cpu_left[:, 0])].T).min(axis=0)
            left = np.maximum(free[row_of, None] - c.count * (c.usable == WHOLE_SHARE_MILLI), 0)
            steps = self._steps(c.cpu_left[row_of] - c.cpu)
            after += np.moveaxis(w.together[table[row_of][:, None], left, steps], -1, 0)
        gain: Ints = after.min(axis=0)
        gain -= value[row_of, None]
        gain &= -GRAIN
        gain -= rest * c.count.astype(bool)
        gain -= (c.idle // np.maximum(c.width, 1) + np.clip(c.cpu_left // CPU_MILLI, 0, w.cores_max))[row_of]
        return gain

    def _steps(self, cpu_left: Ints) -> Ints:
        """CPU as a place in the table."""
        return np.clip(cpu_left // self.worths.cpu_step, 0, self.worths.together.shape[2] - 1)

    def _parts(self, share: Ints, memory: Ints, leasable: Ints) -> tuple[Ints, Ints]:
        """A remainder as a place in the table."""
        w = self.worths
        shares = (np.maximum(share, 0) * w.share_parts + WHOLE_SHARE_MILLI // 2) // WHOLE_SHARE_MILLI
        memories = (np.clip(memory, 0, leasable) * w.memory_parts + leasable // 2) // leasable
        return shares, memories

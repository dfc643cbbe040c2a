"""Prices: place where the node loses the least value, a device remainder being worth what the mix can make of it.

A linear programme over the requests that arrive (`upkeep.price_learner`) gives every size of slice a price. From
those follows what a remainder of r thousandths is worth, `worth[λ, r]`, when CPU costs λ. A node is worth

    V = min over λ of (Σ over devices of worth[λ, left] + λ · CPU left),

the Lagrangian bound on what can still be sold there, and a placement costs the fall of V. Remainders that nothing
arriving fits into are worth nothing, so they are made where it does not matter, and slices that fit into them go there.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.prices import PriceTable, linear_prices
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI

GRAIN = 4096
"""Falls of V are compared in steps of 0.004 devices, a power of two; what is smaller decides only between equals."""


class Price(Policy):
    """The default policy."""

    name = "price"
    summary = "least fall of the node's value at the prices learnt from what arrives (default)"
    per_device = True

    def __init__(self) -> None:
        self.set_prices(linear_prices())

    def set_prices(self, table: PriceTable) -> None:
        """Take a new table; cached scores are thrown away."""
        self.table = table
        self._worth: Ints = np.ascontiguousarray(table.worth().T)
        """[λ, left]"""
        self._lambdas: Ints = np.array(table.cpu_prices, np.int64)[:, None]
        self.groups: Ints = np.array(table.groups, np.int64).reshape(-1, 3)
        """[group, (devices, CPU, worth of a device)]"""
        self.version += 1

    def by_left(self) -> tuple[Ints, Ints]:
        """(worth [left, λ], CPU prices [λ]): the table as the kernel wants it."""
        return np.ascontiguousarray(self._worth.T), np.ascontiguousarray(self._lambdas[:, 0])

    def device_scores(self, c: Candidates) -> Ints:
        """Minus the cost in millionths of a device: the fall of V in grains, then fit, then emptiness."""
        worth, lambdas, row_of = self._worth, self._lambdas, c.row_of
        before = worth.take(c.all_usable, axis=1).sum(axis=2)
        before += lambdas * c.cpu_left[:, 0]
        rest = c.usable - c.size
        after = worth.take(np.maximum(rest, 0), axis=1)
        after -= worth.take(c.usable, axis=1)
        after *= c.count
        after += before.take(row_of, axis=1)[:, :, None]
        after -= lambdas[:, :, None] * c.cpu
        gain: Ints = after.min(axis=0)
        gain -= before.min(axis=0)[row_of, None]
        if len(self.groups):
            gain += self._fall_of_groups(c)
        gain &= -GRAIN
        gain -= rest * c.count.astype(bool)
        gain -= (c.idle // np.maximum(c.width, 1))[row_of]
        return gain

    def _fall_of_groups(self, c: Candidates) -> Ints:
        """[state, shape] what places for several whole devices are worth after the placement, less before."""
        row_of = c.row_of
        free = np.add.reduce(c.all_usable == WHOLE_SHARE_MILLI, axis=1)[row_of, None]
        cpu_left = c.cpu_left[row_of]
        free_after = np.maximum(free - c.count * (c.usable == WHOLE_SHARE_MILLI), 0)
        cpu_after = cpu_left - c.cpu
        fall: Ints = np.zeros((1, 1), np.int64)
        for devices, cpu, worth in self.groups.tolist():
            after = np.minimum(free_after // devices, cpu_after // cpu)
            fall = fall + (after - np.minimum(free // devices, cpu_left // cpu)) * (devices * worth)
        return fall

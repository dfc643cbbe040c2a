"""Price tables: what remainders of a device are worth, as integers that a fact can carry."""

from __future__ import annotations

import msgspec
import numpy as np

from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI

DEVICE = 1_000_000


class PriceTable(msgspec.Struct, frozen=True):
    """Worth of remainders by CPU price. `steps[i]` belongs to `cpu_prices[i]`: (from this remainder on, worth)."""

    version: int
    cpu_prices: tuple[int, ...]
    """Millionths of a device for a thousandth of a CPU, ascending from 0."""
    steps: tuple[tuple[tuple[int, int], ...], ...]
    groups: tuple[tuple[int, int, int], ...] = ()
    """What places for several devices on one node are worth: (devices, their CPU in thousandths, millionths of a
    device for each device of such a place). None where smaller requests abound that fill any gap."""

    def worth(self) -> Ints:
        """[left 0..1000, λ] in millionths of a device."""
        table = np.zeros((WHOLE_SHARE_MILLI + 1, len(self.cpu_prices)), np.int64)
        for column, steps in enumerate(self.steps):
            for start, worth in steps:
                table[start:, column] = worth
        return table


def linear_prices() -> PriceTable:
    """What to believe before anything has arrived: a remainder is worth its size, CPU costs nothing."""
    steps = tuple((left, left * DEVICE // WHOLE_SHARE_MILLI) for left in range(1, WHOLE_SHARE_MILLI + 1))
    return PriceTable(0, (0,), (steps,))

"""Price tables: what each sort of request is worth, as integers that a fact can carry.

What is left of a device is worth what can still be cut from it at those prices (`worth.worth_on`), so that the same
prices say something else of each class of device.
"""

from __future__ import annotations

import msgspec

from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

DEVICE = 1_000_000


class SortPrice(msgspec.Struct, frozen=True, array_like=True):
    """What one slice of a sort of request is worth; of those for several whole devices, one place for all of them."""

    sort: Demand
    """Of it: share, memory, models, vendor and MIG profile of a slice, and the devices of a place for several."""
    worths: tuple[int, ...]
    """Millionths of a device, one for each CPU price."""


class PriceTable(msgspec.Struct, frozen=True):
    """Worth by CPU price. Tables without `sorts` say themselves what remainders are worth, of any device alike."""

    version: int
    cpu_prices: tuple[int, ...]
    """Millionths of a device for a thousandth of a CPU, ascending from 0."""
    steps: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Of tables without sorts: `steps[i]` belongs to `cpu_prices[i]`: (from this remainder on, worth)."""
    sorts: tuple[SortPrice, ...] = ()
    together: tuple[SortPrice, ...] = ()
    """Sorts for several whole devices of one node."""

    @property
    def by_memory(self) -> bool:
        """Some request states its memory, so that a remainder's share and memory are worth something apart."""
        return any(each.sort.memory_bytes for each in (*self.sorts, *self.together))


def linear_prices() -> PriceTable:
    """What to believe before anything has arrived: a remainder is worth its size, CPU costs nothing."""
    steps = tuple((left, left * DEVICE // WHOLE_SHARE_MILLI) for left in range(1, WHOLE_SHARE_MILLI + 1))
    return PriceTable(0, (0,), (steps,))

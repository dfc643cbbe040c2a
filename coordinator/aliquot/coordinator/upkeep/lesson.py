"""What a lesson in prices brings: the table, and what follows from it for the pool's devices, worked out already."""

from __future__ import annotations

import msgspec
import numpy as np

from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.placement.worth import parts_of, remember


class Lesson(msgspec.Struct, frozen=True):
    """A table of prices. The worths are a convenience: whoever lacks them works them out."""

    table: PriceTable
    worths: tuple[tuple[DeviceClass, bytes], ...] = ()
    """`worth_on(table, class)`, as 32-bit integers."""

    def take_in(self) -> PriceTable:
        """Remember the worths; returns the table."""
        share_parts, memory_parts = parts_of(by_memory=self.table.by_memory)
        for device_class, raw in self.worths:
            shape = share_parts + 1, memory_parts + 1, len(self.table.cpu_prices)
            worth = np.frombuffer(raw, np.int32).reshape(shape).astype(np.int64)
            remember(self.table, device_class, worth)
        return self.table

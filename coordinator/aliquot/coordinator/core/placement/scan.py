"""The plain way: score every row for every question. Slow, and obviously right, so the cached index is tested
on it.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.index import scan_shape
from aliquot.coordinator.core.placement.scoring import NEVER, Columns, Scorer
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.types import Demand


class ScanIndex:
    """An `Index` that remembers nothing but the answer to the last question."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._keys: Ints = np.zeros(0, np.int64)
        self._columns: Columns = np.zeros(0, np.int16)

    def slot(self, shape: Demand) -> int:
        """See `Index.slot`."""
        shapes = self.scorer.shapes
        self.scorer.sync()
        slot = shapes.slots.get(shape, -1)
        if slot < 0:
            slot = shapes.used
            shapes.put(slot, shape)
        self._keys, self._columns = scan_shape(self.scorer, slot, shapes.eligible_rows(slot))
        return slot

    def best(self, slot: int) -> tuple[int, int]:
        """See `Index.best`."""
        if not len(self._keys):
            return 0, int(NEVER)
        row = int(self._keys.argmax())
        return row, int(self._keys[row])

    def column(self, slot: int) -> Ints:
        """See `Index.column`."""
        return self._keys.copy()

    def device_column(self, row: int, slot: int) -> int:
        """See `Index.device_column`."""
        return int(self._columns[row])

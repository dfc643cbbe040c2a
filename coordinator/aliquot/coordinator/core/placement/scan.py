"""Score every row for every question: slow and simple, the oracle that the cached index is tested against."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.index import scan_shape
from aliquot.coordinator.core.placement.scoring import NO_SCORE, Scorer, column_of, scores_of
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.types import Demand


class ScanIndex:
    """An `Index` that remembers nothing but the answer to the last question."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._keys: Ints = np.zeros(0, np.int64)

    @property
    def seen(self) -> int:
        """See `Index.seen`: it keeps no scores, so it is never behind."""
        return self.scorer.inventory.changes.end

    def slot(self, shape: Demand) -> int:
        """See `Index.slot`."""
        shapes = self.scorer.shapes
        self.scorer.sync()
        slot = shapes.slots.get(shape, -1)
        if slot < 0:
            slot = shapes.used
            shapes.put(slot, shape)
        self._keys = scan_shape(self.scorer, slot, shapes.eligible_rows(slot))
        return slot

    def best(self, slot: int) -> tuple[int, int]:
        """See `Index.best`."""
        scores = scores_of(self._keys)
        if not len(scores):
            return 0, NO_SCORE
        row = int(scores.argmax())
        return row, int(scores[row])

    def column(self, slot: int) -> Ints:
        """See `Index.column`."""
        return scores_of(self._keys)

    def device_column(self, row: int, slot: int) -> int:
        """See `Index.device_column`."""
        return column_of(int(self._keys[row]))

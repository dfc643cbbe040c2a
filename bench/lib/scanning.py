"""Scores that are found anew for each question: slow, and the same decisions. What cached ones are compared with."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.index import ScoreIndex, scan_shape
from aliquot.coordinator.core.placement.scoring import NO_SCORE, Scorer, column_of, scores_of
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import Demand


class ScanIndex(ScoreIndex):
    """Remembers nothing but the answer to the last question."""

    def __init__(self, scorer: Scorer, *, compiled: bool = False) -> None:
        super().__init__(scorer, compiled=False)
        self._keys: Ints = np.zeros(0, np.int64)

    @property
    def seen(self) -> int:
        """It keeps no scores, so it is never behind."""
        return self.scorer.inventory.changes.end

    def slot(self, shape: Demand) -> int:
        """See `ScoreIndex.slot`."""
        shapes = self.scorer.shapes
        self.scorer.sync()
        slot = shapes.slots.get(shape, -1)
        if slot < 0:
            slot = shapes.used
            shapes.put(slot, shape)
        self._keys = scan_shape(self.scorer, slot, shapes.eligible_rows(slot))
        return slot

    def best(self, slot: int) -> tuple[int, int]:
        """See `ScoreIndex.best`."""
        scores = scores_of(self._keys)
        if not len(scores):
            return 0, NO_SCORE
        row = int(scores.argmax())
        return row, int(scores[row])

    def column(self, slot: int) -> Ints:
        """See `ScoreIndex.column`."""
        return scores_of(self._keys)

    def device_column(self, row: int, slot: int) -> int:
        """See `ScoreIndex.device_column`."""
        return column_of(int(self._keys[row]))

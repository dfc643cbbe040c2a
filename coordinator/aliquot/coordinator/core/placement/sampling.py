"""The pool's fragmentation as a live figure: measured a few rows at a time, so that no decision waits for it.

A pass takes many steps, and the pool changes meanwhile: the figure is an average over the time of the pass.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.fragmentation import Fragmentation, Mix, Sums, typical
from aliquot.coordinator.core.placement.mix import by_share, reference_bytes

STEP_ROWS = 256
"""Nodes measured at once: about a millisecond for the forty or so types that make up most of a mix."""

TYPES_MAX = 64


class FragmentationSampler:
    """Measures one engine's pool, again and again."""

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

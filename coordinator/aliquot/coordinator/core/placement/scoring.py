"""From policy and arrays to one comparable integer for each (row, shape), and the device that earned it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.candidates import Extent, gather
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI

NEVER = np.iinfo(np.int64).min
"""The key of a row that a shape does not fit."""

TIER_SHIFT = 42
"""Keys are `tier << 42 | score`: sharing an NVLink island comes before any score."""

COLUMN_BITS = 8
COLUMN_LAST = (1 << COLUMN_BITS) - 1
"""Rows have fewer devices than this."""

Columns = npt.NDArray[np.int16]


class Scorer:
    """Scores rows of one inventory for shapes by one policy. Holds no scores."""

    def __init__(self, inventory: Inventory, policy: Policy, shapes: ShapeTable) -> None:
        self.inventory = inventory
        self.policy = policy
        self.shapes = shapes
        self._extent = Extent(WHOLE_SHARE_MILLI, 1)
        self._structure = -1
        self.sync()

    def sync(self) -> bool:
        """Take up new nodes; True if that changes the scores of rows that did not change themselves."""
        inventory = self.inventory
        if self._structure == inventory.structure_version:
            return False
        self._structure = inventory.structure_version
        table, rows = inventory.table, inventory.table.rows
        extent = Extent(
            max(int(table.width[:rows].max(initial=0)), 1) * WHOLE_SHARE_MILLI,
            max(int(table.cpu_capacity[:rows].max(initial=0)), 1),
        )
        moved = extent != self._extent
        self._extent = extent
        self.policy.learn_classes(inventory)
        return self.shapes.sync_classes() or moved

    def keys(self, rows: Ints, slots: slice, eligible: Bools) -> tuple[Ints, Columns]:
        """(keys, columns), both [row, shape]: `NEVER` where it does not fit; the best device's column otherwise."""
        found = gather(self.inventory.table, self.shapes, self._extent, rows, slots, eligible)
        c, allowed = found.candidates, found.allowed
        policy = self.policy
        if policy.at_random:
            keys: Ints = np.zeros(allowed.shape, np.int64)
            columns: Columns = np.zeros(allowed.shape, np.int16)
        elif policy.per_device:
            # The column rides along in the low bits, so that one maximum finds both score and device.
            scores = (policy.device_scores(c) << COLUMN_BITS) + (COLUMN_LAST - found.columns)
            fits = c.fits
            fits[c.starts] |= c.count == 0
            best = np.maximum.reduceat(np.where(fits, scores, NEVER), c.starts, axis=0)
            columns = (COLUMN_LAST - (best & COLUMN_LAST)).astype(np.int16)
            keys = best >> COLUMN_BITS
        else:
            keys = policy.node_scores(c)
            columns = np.zeros(allowed.shape, np.int16)
        if found.tier is not None:
            keys = keys + (found.tier << TIER_SHIFT)
        return np.where(allowed, keys, NEVER), columns

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

Columns = npt.NDArray[np.int16]


class Scorer:
    """Scores rows of one inventory for shapes by one policy. Holds no scores."""

    def __init__(self, inventory: Inventory, policy: Policy, shapes: ShapeTable) -> None:
        self.inventory = inventory
        self.policy = policy
        self.shapes = shapes
        self._extent = Extent(np.ones(1, np.int64), WHOLE_SHARE_MILLI, 1)
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
            np.array([c.leasable_bytes for c in inventory.classes] + [1], np.int64),
            max(int(table.width[:rows].max(initial=0)), 1) * WHOLE_SHARE_MILLI,
            max(int(table.cpu_capacity[:rows].max(initial=0)), 1),
        )
        moved = extent[1:] != self._extent[1:]
        self._extent = extent
        self.policy.learn_classes(inventory)
        return self.shapes.sync_classes() or moved

    def keys(self, rows: Ints, slots: slice, eligible: Bools, *, distinct: bool = False) -> tuple[Ints, Columns]:
        """(keys, columns), both [row, shape]: `NEVER` where it does not fit; the best device's column
        otherwise.
        """
        found = gather(self.inventory.table, self.shapes, self._extent, rows, slots, eligible, distinct=distinct)
        c = found.candidates
        policy = self.policy
        if policy.at_random:
            keys = np.zeros(found.allowed.shape, np.int64)
            columns = np.zeros(found.allowed.shape, np.int16)
        elif policy.per_device:
            scores = policy.device_scores(c)
            scores = np.where(c.fits | (c.count == 0)[:, :, None], scores, NEVER)
            best = scores.argmax(axis=2)
            keys = np.take_along_axis(scores, best[:, :, None], axis=2)[:, :, 0]
            if found.first_column is not None:
                best = np.asarray(found.first_column)[best]
            columns = best.astype(np.int16)
        else:
            keys = policy.node_scores(c)
            columns = np.zeros(found.allowed.shape, np.int16)
        if found.tier is not None:
            keys = keys + (found.tier << TIER_SHIFT)
        return np.where(found.allowed, keys, NEVER), columns

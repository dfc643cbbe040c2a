"""From policy and arrays to one comparable integer for each (row, shape), and the device that earned it."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.candidates import COLUMN_LAST, gather
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable

COLUMN_BITS = COLUMN_LAST.bit_length()

TIER_SHIFT = 50
"""Keys are `tier << 50 | score << 8 | 255 - column`: sharing an NVLink island comes before any score."""

NEVER = -(1 << 62)
"""The key of a row that a shape does not fit."""

NO_SCORE = NEVER >> COLUMN_BITS
"""`scores_of` that key."""


class Scorer:
    """Scores rows of one inventory for shapes by one policy. Holds no scores."""

    def __init__(self, inventory: Inventory, policy: Policy, shapes: ShapeTable) -> None:
        self.inventory = inventory
        self.policy = policy
        self.shapes = shapes
        self._structure = -1
        self.sync()

    def sync(self) -> bool:
        """Take up new nodes; True if that changes the scores of rows that did not change themselves."""
        inventory = self.inventory
        if self._structure == inventory.structure_version:
            return False
        self._structure = inventory.structure_version
        self.policy.learn_classes(inventory)
        return self.shapes.sync_classes()

    def keys(self, rows: Ints, slots: slice, eligible: Bools) -> Ints:
        """[row, shape] keys: `NEVER` where it does not fit, else score and best device (`scores_of`, `column_of`)."""
        found = gather(self.inventory.table, self.shapes, rows, slots, eligible)
        c, allowed = found.candidates, found.allowed
        policy = self.policy
        if policy.per_device:
            # The column rides along in the low bits, so that one maximum finds both score and device.
            keys = (policy.device_scores(c) << COLUMN_BITS) + found.columns_left
            fits = c.fits
            if self.shapes.any_cpu_only:
                fits[c.starts] |= c.count == 0
            keys = np.maximum.reduceat(np.where(fits, keys, NEVER), c.starts, axis=0)
        else:
            keys = policy.node_scores(c) << COLUMN_BITS
        if found.tier is not None:
            keys = keys + (found.tier << TIER_SHIFT)
        return np.where(allowed, keys, NEVER)


def scores_of(keys: Ints) -> Ints:
    """What rows are compared by: the key without the device, so that equal rows go by rank."""
    return keys >> COLUMN_BITS


def column_of(key: int) -> int:
    """The best device of a row; the first of equals."""
    return COLUMN_LAST - (key & COLUMN_LAST)

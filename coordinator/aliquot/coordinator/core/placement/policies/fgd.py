"""Fragmentation gradient descent: place where the least idle capacity becomes useless to the requests that arrive.

Weng, Yang et al., "Beware of Fragmentation", USENIX ATC 2023. The fragmentation of a node is the idle share
that a request drawn from the mix could not use there, summed over the mix; a place scores by how little it
adds. As published, the score is cut to 0..100 by a sigmoid, and that coarseness matters: ties fall to the
lowest rank, which keeps nodes apart in age and fullness.
"""

from __future__ import annotations

import math

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.fragmentation import Mix
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import Demand

SIGMOID_MILLI = 1000
"""A gradient of one device moves the score from 50 to 73."""


class Fgd(Policy):
    """As published; before it knows a mix, it fills the fullest device."""

    name = "fgd"
    summary = "least added fragmentation for the mix of requests (USENIX ATC 2023)"
    per_device = True
    utilisation_ties = False
    mix_dependent = True

    def __init__(self) -> None:
        self._mix = Mix(())
        self._inventory: Inventory | None = None
        self._thresholds: Ints = np.zeros(0, np.int64)

    def set_mix(self, mix: tuple[tuple[Demand, int], ...]) -> None:
        """See `Policy.set_mix`."""
        self._mix = Mix(mix)
        if self._inventory is not None:
            self._mix.learn_classes(self._inventory)
        steps = [math.log(step / (100 - step)) for step in range(1, 100)]
        scale = SIGMOID_MILLI * self._mix.total_weight
        self._thresholds = np.array([math.ceil(step * scale) for step in steps], np.int64)
        self.version += 1

    def learn_classes(self, inventory: Inventory) -> None:
        """See `Policy.learn_classes`."""
        self._inventory = inventory
        self._mix.learn_classes(inventory)

    def device_scores(self, c: Candidates) -> Ints:
        """trunc(100 · sigmoid((F − F′) / 1000)), in integers throughout: the sigmoid is a table of thresholds."""
        if not self._mix.total_weight:
            return -c.left + 0 * c.size
        before = self._mix.fragmentation(c)
        after = self._mix.fragmentation_after(c)
        return np.searchsorted(self._thresholds, before[c.row_of] - after, side="right")

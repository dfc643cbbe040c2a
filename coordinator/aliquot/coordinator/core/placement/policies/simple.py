"""The two policies that need no explanation: fill nodes up, or spread load out."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.shapes import Ints


class BinPack(Policy):
    """Least share left on the device, then on the node."""

    name = "binpack"
    summary = "fill the fullest device that fits, on the fullest node"
    per_device = True

    def device_scores(self, c: Candidates) -> Ints:
        """A device's left counts before its node's: 1001 devices' worth of node never outweighs 1 milli of
        device.
        """
        scores: Ints = -(c.left * (1 << 20) + c.all_left.sum(axis=2, keepdims=True) + 0 * c.size[:, :, None])
        return scores


class Spread(Policy):
    """Most share left on the node, in proportion to its size, then on the device."""

    name = "spread"
    summary = "put load on the emptiest node and device"
    per_device = True

    def device_scores(self, c: Candidates) -> Ints:
        """The node's idle part in thousandths, then the device's."""
        idle: Ints = c.all_left.sum(axis=2, keepdims=True) // np.maximum(c.width[:, :, None], 1)
        return idle * 1024 + c.left + 0 * c.size[:, :, None]

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
        """A device's left counts before its node's: no node has more than 2²⁰ thousandths."""
        scores: Ints = -(c.left * (1 << 20) * (c.count > 0) + c.idle[c.row_of])
        return scores


class Spread(Policy):
    """Most share left on the node, in proportion to its size, then on the device."""

    name = "spread"
    summary = "put load on the emptiest node and device"
    per_device = True

    def device_scores(self, c: Candidates) -> Ints:
        """The node's idle part in thousandths, then the device's."""
        idle: Ints = c.idle // np.maximum(c.width, 1)
        return idle[c.row_of] * 1024 + c.left * (c.count > 0)

"""The policies that come with the coordinator, by name."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.policies.price import Price
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


POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Price, BinPack, Spread)}


BY_WORKLOAD = "workload"
"""In place of a policy, for queues and pools: by what a request says that it is."""


def make_policy(name: str) -> Policy:
    """A fresh policy by name. ValueError with the known names when there is none."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"no placement policy {name!r}; known: {', '.join(sorted(POLICIES))}") from None

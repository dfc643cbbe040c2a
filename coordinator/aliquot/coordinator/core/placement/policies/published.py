"""The policies that the openb study compares with, as its public simulator has them.

`docs/placement.md` has the formulas in words. They are elementwise, so floats are the same however rows are batched.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI

NO_DEVICE = 1 << 20


def _asked(c: Candidates) -> Ints:
    """[row or 1, shape] share that a member takes in all."""
    return c.count * c.share


class BestFit(Policy):
    """trunc(100 (1 − ½ (cpu left after / largest CPU) − ½ (share left after / widest node)))."""

    name = "bestfit"
    summary = "least CPU and share left on the node"
    utilisation_ties = False

    def node_scores(self, c: Candidates) -> Ints:
        """0..100."""
        cpu = (np.minimum(c.cpu_left, c.extent.largest_cpu_milli) - c.cpu) / c.extent.largest_cpu_milli
        share = (c.idle - _asked(c)) / c.extent.widest_milli
        return (100 * (1 - 0.5 * cpu - 0.5 * share)).astype(np.int64)


class DotProd(Policy):
    """trunc(100 (1 − ½ (cpu left · cpu / largest CPU² + share left · share / widest node²)))."""

    name = "dotprod"
    summary = "least alignment of what is asked with what is left"
    utilisation_ties = False

    def node_scores(self, c: Candidates) -> Ints:
        """0..100."""
        cpu = np.minimum(c.cpu_left, c.extent.largest_cpu_milli) * c.cpu / c.extent.largest_cpu_milli**2
        share = c.idle * _asked(c) / c.extent.widest_milli**2
        return (100 * (1 - 0.5 * (cpu + share))).astype(np.int64)


class Packing(Policy):
    """Partly used devices before free devices of partly used nodes before free nodes."""

    name = "packing"
    summary = "fill used devices, then used nodes, then free nodes"
    utilisation_ties = False

    def node_scores(self, c: Candidates) -> Ints:
        """All n devices free: max(33 − n, n); the slices on f free devices: max(50 − f, 33); else by what is left."""
        free_node = c.idle == c.width * WHOLE_SHARE_MILLI
        left = np.minimum.reduceat(np.where(c.fits, c.left, NO_DEVICE), c.starts, axis=0)
        part = np.maximum(100 - c.count * (np.minimum(left, WHOLE_SHARE_MILLI) * 100 // WHOLE_SHARE_MILLI) // 10, 50)
        free_devices = np.maximum(50 - c.count, 33)
        scores = np.where(left == WHOLE_SHARE_MILLI, free_devices, part)
        scores = np.where(free_node, np.maximum(33 - c.width, c.width), scores)
        return np.where(c.count == 0, 0, scores)


class Clustering(Policy):
    """Like with like: nodes that hold only requests of the same kind first."""

    name = "clustering"
    summary = "put requests of the same kind on the same nodes"
    utilisation_ties = False

    def node_scores(self, c: Candidates) -> Ints:
        """25 for a full node down to 0, plus 75: only this kind, 50: this among others, 25: no kind at all."""
        used = 25 * (c.extent.widest_milli - c.idle) // c.extent.widest_milli
        own = 1 << c.kind
        company = np.where(c.kinds == own, 75, np.where((c.kinds & own) != 0, 50, np.where(c.kinds == 0, 25, 0)))
        return np.where(c.count == 0, 0, used + company)


class Random(Policy):
    """A uniformly drawn feasible node and device; the draw is a hash of the arrival number."""

    name = "random"
    summary = "any feasible node and device, drawn from the arrival number"
    utilisation_ties = False
    at_random = True

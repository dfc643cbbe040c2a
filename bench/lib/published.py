"""Policies that the openb study compares with, as its public simulator has them: for comparison, and nothing else.

They are elementwise, so floats are the same however rows are batched.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import POLICIES, Policy
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI

NO_DEVICE = 1 << 20


def _asked(c: Candidates) -> Ints:
    """[row or 1, shape] share that a member takes in all."""
    return c.count * c.share


class _Scaled(Policy):
    """Scales to the largest node of the pool."""

    utilisation_ties = False

    def __init__(self) -> None:
        self.widest_milli, self.largest_cpu_milli = WHOLE_SHARE_MILLI, 1

    def learn_classes(self, inventory: Inventory) -> None:
        """See `Policy.learn_classes`."""
        table, rows = inventory.table, inventory.table.rows
        widest_milli = max(int(table.width[:rows].max(initial=0)), 1) * WHOLE_SHARE_MILLI
        largest_cpu_milli = max(int(table.cpu_capacity[:rows].max(initial=0)), 1)
        if (widest_milli, largest_cpu_milli) != (self.widest_milli, self.largest_cpu_milli):
            self.widest_milli, self.largest_cpu_milli = widest_milli, largest_cpu_milli
            self.version += 1


class BestFit(_Scaled):
    """trunc(100 (1 − ½ (cpu left after / largest CPU) − ½ (share left after / widest node)))."""

    name = "bestfit"
    summary = "least CPU and share left on the node"

    def node_scores(self, c: Candidates) -> Ints:
        """0..100."""
        cpu = (np.minimum(c.cpu_left, self.largest_cpu_milli) - c.cpu) / self.largest_cpu_milli
        share = (c.idle - _asked(c)) / self.widest_milli
        scores: Ints = (100 * (1 - 0.5 * cpu - 0.5 * share)).astype(np.int64)
        return scores


class DotProd(_Scaled):
    """trunc(100 (1 − ½ (cpu left · cpu / largest CPU² + share left · share / widest node²)))."""

    name = "dotprod"
    summary = "least alignment of what is asked with what is left"

    def node_scores(self, c: Candidates) -> Ints:
        """0..100."""
        cpu = np.minimum(c.cpu_left, self.largest_cpu_milli) * c.cpu / self.largest_cpu_milli**2
        share = c.idle * _asked(c) / self.widest_milli**2
        scores: Ints = (100 * (1 - 0.5 * (cpu + share))).astype(np.int64)
        return scores


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


POLICIES.update({policy.name: policy for policy in (BestFit, DotProd, Packing)})

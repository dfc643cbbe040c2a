"""The openb study's policy, and those that it compares with, as its public simulator has them: for comparison only.

All but `fgd`, which computes in integers, are elementwise, so floats are the same however rows are batched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import POLICIES, Policy
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.fragmentation import Mix, typical
from aliquot.coordinator.core.placement.mix import by_share, reference_bytes
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand
from aliquot.plan.learning import types_of

NO_DEVICE = 1 << 20

SIGMOID_MILLI = 1000
"""A gradient of one device moves the score of `fgd` from 50 to 73."""


class _Gradient(Mix):
    """What places would change of the fragmentation that the coordinator measures."""

    def before(self, c: Candidates) -> Ints:
        """[row, 1] fragmentation of each row, in milli-devices times `total_weight`."""
        return self.of_rows(c.all_left, c.cpu_left[:, 0], c.class_id[:, 0])[:, None]

    def after(self, c: Candidates) -> Ints:
        """[state, shape] the same, were the member's slices on devices in that state."""
        share = c.share[c.row_of] if len(c.share) > 1 else c.share
        rest = np.maximum(c.left - share, 0)
        after = self._of_left.take(rest, axis=0)
        after -= self._of_left.take(c.left, axis=0)
        after *= c.count[:, :, None]
        after += self._sums(c.all_left)[c.row_of][:, None, :]
        total = c.idle[c.row_of] - c.count * (c.left - rest)
        useless = (c.cpu_left[c.row_of] - c.cpu)[:, :, None] < self._cpu
        useless |= self._unsuited[c.class_id[c.row_of]]
        return self._weigh(after, total[:, :, None], useless)


class Fgd(Policy):
    """Fragmentation gradient descent: place where the least idle capacity becomes useless to the requests that arrive.

    Weng, Yang et al., "Beware of Fragmentation", USENIX ATC 2023. The fragmentation of a node is the idle share
    that a request drawn from the mix could not use there, summed over the mix; a place scores by how little it
    adds. As published, the score is cut to 0..100 by a sigmoid, and that coarseness matters: ties fall to the
    lowest rank, which keeps nodes apart in age and fullness. Before it knows a mix, it fills the fullest device.
    """

    name = "fgd"
    summary = "least added fragmentation for the mix of requests (USENIX ATC 2023)"
    per_device = True

    def __init__(self) -> None:
        self._mix = _Gradient(())
        self._thresholds: Ints = np.zeros(0, np.int64)

    def expect(self, demands: Iterable[Demand], inventory: Inventory) -> None:
        """Be told the whole mix beforehand, as in the study, with memory as the part of a typical device that it is."""
        mix = typical(by_share(types_of(Counter(demands)), reference_bytes(inventory)))
        self._mix = _Gradient(mix)
        self._mix.learn_classes(inventory)
        steps = [math.log(step / (100 - step)) for step in range(1, 100)]
        scale = SIGMOID_MILLI * self._mix.total_weight
        self._thresholds = np.array([math.ceil(step * scale) for step in steps], np.int64)
        self.version += 1

    def learn_classes(self, inventory: Inventory) -> None:
        """See `Policy.learn_classes`."""
        self._mix.learn_classes(inventory)

    def device_scores(self, c: Candidates) -> Ints:
        """trunc(100 · sigmoid((F − F′) / 1000)), in integers throughout: the sigmoid is a table of thresholds."""
        if not self._mix.total_weight:
            return -c.left + 0 * c.size
        before = self._mix.before(c)
        after = self._mix.after(c)
        return np.searchsorted(self._thresholds, before[c.row_of] - after, side="right")


def _asked(c: Candidates) -> Ints:
    """[row or 1, shape] share that a member takes in all."""
    return c.count * c.share


class _Scaled(Policy):
    """Scales to the largest node of the pool."""

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

    def node_scores(self, c: Candidates) -> Ints:
        """All n devices free: max(33 − n, n); the slices on f free devices: max(50 − f, 33); else by what is left."""
        free_node = c.idle == c.width * WHOLE_SHARE_MILLI
        left = np.minimum.reduceat(np.where(c.fits, c.left, NO_DEVICE), c.starts, axis=0)
        part = np.maximum(100 - c.count * (np.minimum(left, WHOLE_SHARE_MILLI) * 100 // WHOLE_SHARE_MILLI) // 10, 50)
        free_devices = np.maximum(50 - c.count, 33)
        scores = np.where(left == WHOLE_SHARE_MILLI, free_devices, part)
        scores = np.where(free_node, np.maximum(33 - c.width, c.width), scores)
        return np.where(c.count == 0, 0, scores)


POLICIES.update({policy.name: policy for policy in (Fgd, BestFit, DotProd, Packing)})

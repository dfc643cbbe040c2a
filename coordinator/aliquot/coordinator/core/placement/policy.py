"""What a placement policy is: a score for each (row, shape), higher is better, in integers.

The engine decides what is feasible, breaks ties (the least utilised first, then
the lowest node rank), picks devices and keeps scores up to date; a policy only says how good a place is. Scores
must be integers below `SCORE_LIMIT` in size and depend on nothing but the candidates and the policy's own
parameters: the same row and shape must score the same however they are batched. Floats are allowed on the way
as long as the result is rounded and does not depend on the order of a sum.
"""

from __future__ import annotations

from typing import ClassVar

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.shapes import Ints

SCORE_LIMIT = 1 << 40


class Policy:
    """Base of all policies. Override `node_scores`, or set `per_device` and override `device_scores`."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    """One line for `aliquot plan --help` and the documentation."""
    per_device: ClassVar[bool] = False
    """Scores each device of a row; the engine takes the best one. Otherwise a slice goes to the fitting
    device with the least share left (whole devices: the first free ones)."""

    version: int = 0
    """Moves when parameters change, so that cached scores are thrown away."""

    def node_scores(self, c: Candidates) -> Ints:
        """[row, shape]: how good it is to put one member there."""
        raise TypeError(f"policy {self.name!r} overrides neither node_scores nor device_scores")

    def device_scores(self, c: Candidates) -> Ints:
        """[state, shape]: how good it is to put the member's `count` slices on devices in that state."""
        scores: Ints = self.node_scores(c)[c.row_of]
        return scores

    def learn_classes(self, inventory: Inventory) -> None:
        """Take note of the pool's device classes; called before scoring whenever nodes came or went."""

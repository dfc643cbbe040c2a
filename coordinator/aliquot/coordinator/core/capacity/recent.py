"""What was asked for and granted lately: an index, from which it is told what will be asked for before a node can come.

Requests are noted when they are granted, at the time at which they were made: what a limit or a budget keeps out asks
for no node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from aliquot.coordinator.core.types import Demand

KEPT_MAX = 4_096
"""Requests; older ones are forgotten."""


class RecentDemand:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._noted: deque[tuple[int, Demand]] = deque(maxlen=KEPT_MAX)

    def note(self, asked_ms: int, demand: Demand) -> None:
        """A request was granted for the first time."""
        if not demand.node_ids and not demand.opportunistic:
            self._noted.append((asked_ms, demand))

    def since(self, from_ms: int) -> Iterator[tuple[int, Demand]]:
        """(when it was asked for, what), of those granted last; about in the order of time, the latest first."""
        for asked_ms, demand in reversed(self._noted):
            if asked_ms >= from_ms:
                yield asked_ms, demand

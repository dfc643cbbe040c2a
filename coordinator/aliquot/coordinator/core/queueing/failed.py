"""Demands that did not fit: what asks for the same or more need not be tried before something is freed.

Only the smallest failed demands are remembered. That keeps a pass short with 100,000 requests that differ a little.
"""

from __future__ import annotations

import msgspec

from aliquot.coordinator.core.values.types import Demand

KINDS_MAX = 4096
FRONTIER_MAX = 32
_Size = tuple[int, int, int, int, int, int]


class FailedDemands:
    """A set of demands, closed upwards."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[Demand, list[_Size]] = {}

    def clear(self) -> None:
        """Something was freed."""
        if self._kinds:
            self._kinds.clear()

    def add(self, demand: Demand) -> None:
        """This did not fit."""
        kind, size = _split(demand)
        frontier = self._kinds.get(kind)
        if frontier is None:
            if len(self._kinds) >= KINDS_MAX:
                return
            frontier = self._kinds[kind] = []
        frontier[:] = [known for known in frontier if not _covers(size, known)]
        if len(frontier) < FRONTIER_MAX:
            frontier.append(size)

    def __contains__(self, demand: Demand) -> bool:
        if not self._kinds:
            return False
        kind, size = _split(demand)
        return any(_covers(known, size) for known in self._kinds.get(kind, ()))


def _split(demand: Demand) -> tuple[Demand, _Size]:
    """What must be equal, and what only has to be as large.

    A size that follows from another one (zero) grows with it, so demands compare only where the same sizes are given.
    """
    kind = msgspec.structs.replace(
        demand,
        count=min(demand.count, 1),
        share_milli=min(demand.share_milli, 1),
        memory_bytes=min(demand.memory_bytes, 1),
        gang_size=1,
        cpu_milli=0,
        host_memory_bytes=0,
    )
    size = (
        demand.count,
        demand.share_milli,
        demand.memory_bytes,
        demand.gang_size,
        demand.cpu_milli,
        demand.host_memory_bytes,
    )
    return kind, size


def _covers(small: _Size, large: _Size) -> bool:
    # Not all(): every head of every line is compared with every known size, at each step of each pass.
    return (
        small[0] <= large[0]
        and small[1] <= large[1]
        and small[2] <= large[2]
        and small[3] <= large[3]
        and small[4] <= large[4]
        and small[5] <= large[5]
    )

"""The waiting requests, grouped into lines of interchangeable ones.

Two requests with the same demand fail for the same reason, so only the first of each line is ever tried: with 100,000
waiting requests of 40 kinds, a pass over a full pool costs 40 placements. Across lines the order is that of `rank`:
priority first, then arrival, which a requeue keeps.

The lines are derived from the leases and are rebuilt by replay.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.types import Demand

Rank = tuple[int, int]
"""(-priority, arrival): smaller is tried earlier. Arrivals are unique, so ranks are."""

LineKey = tuple[Demand, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request: where it stands and what it wants."""

    rank: Rank
    lease_id: str
    line: LineKey


def rank_of(lease: Lease) -> Rank:
    """Where a lease stands among all that wait."""
    return (-lease.request.priority, lease.arrival)


def line_of(lease: Lease) -> LineKey:
    """Which line it stands in. Devices to avoid after a failure make a request different from its fellows."""
    return (lease.request.demand, lease.avoid_device_uuids)


class WaitingLines:
    """All waiting requests. Adding and removing cost O(log n) comparisons."""

    __slots__ = ("_lines", "_resting", "_size")

    def __init__(self) -> None:
        self._lines: dict[LineKey, list[tuple[Rank, str]]] = {}
        self._resting: dict[str, Waiting] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def resting(self) -> int:
        """How many are in back-off after a failure: they keep their rank but are not tried yet."""
        return len(self._resting)

    def add(self, lease: Lease, *, resting: bool = False) -> None:
        """Put a lease in line, or beside it until `wake`."""
        self._size += 1
        waiting = Waiting(rank_of(lease), lease.lease_id, line_of(lease))
        if resting:
            self._resting[lease.lease_id] = waiting
        else:
            self._enqueue(waiting)

    def wake(self, lease_id: str) -> bool:
        """Let a resting lease be tried again. False if it does not rest (any more)."""
        waiting = self._resting.pop(lease_id, None)
        if waiting is None:
            return False
        self._enqueue(waiting)
        return True

    def remove(self, lease: Lease) -> None:
        """Take a lease out; it must be there."""
        self._size -= 1
        if self._resting.pop(lease.lease_id, None) is not None:
            return
        key = line_of(lease)
        line = self._lines[key]
        index = bisect_left(line, (rank_of(lease), lease.lease_id))
        del line[index]
        if not line:
            del self._lines[key]

    def ahead_of(self, lease: Lease, limit: int) -> tuple[int, list[str]]:
        """How many are tried before this lease, and the first `limit` of them in order."""
        entry = (rank_of(lease), lease.lease_id)
        cuts = [(line, bisect_left(line, entry)) for line in self._lines.values()]
        first = heapq.merge(*(line[: min(cut, limit)] for line, cut in cuts if cut))
        names = [lease_id for (_, lease_id), _ in zip(first, range(limit), strict=False)]
        return sum(cut for _, cut in cuts), names

    def has_line(self, key: LineKey) -> bool:
        """Whether somebody with this very demand waits already."""
        return key in self._lines

    def in_order(self) -> Iterator[str]:
        """All lease ids that are tried, in order. For listings and checks: O(n log lines)."""
        for _, lease_id in heapq.merge(*self._lines.values()):
            yield lease_id

    def ids(self) -> Iterator[str]:
        """All lease ids, resting ones too, in no particular order."""
        for line in self._lines.values():
            for _, lease_id in line:
                yield lease_id
        yield from self._resting

    def start_pass(self) -> AdmissionPass:
        """Go through the lines once."""
        return AdmissionPass(self._lines)

    def _enqueue(self, waiting: Waiting) -> None:
        insort(self._lines.setdefault(waiting.line, []), (waiting.rank, waiting.lease_id))


class AdmissionPass:
    """One walk over the lines in the order of their ranks, in turns: the caller stops and resumes at will.

    A line whose first request could not be placed is left for this pass (`block`). A line whose first request was
    granted
    comes again with its next.
    """

    __slots__ = ("_heads", "_lines")

    def __init__(self, lines: dict[LineKey, list[tuple[Rank, str]]]) -> None:
        self._lines = lines
        # The running number keeps the heap from ever comparing two demands: ranks are unique, but a heap does not know.
        self._heads: list[tuple[Rank, int, LineKey]] = [
            (line[0][0], number, key) for number, (key, line) in enumerate(lines.items())
        ]
        heapq.heapify(self._heads)

    def head(self) -> Waiting | None:
        """The request to try now, or None when the pass is over. Lines that changed meanwhile are looked at afresh."""
        while self._heads:
            rank, number, key = self._heads[0]
            line = self._lines.get(key)
            if not line:
                heapq.heappop(self._heads)
            elif line[0][0] != rank:
                heapq.heapreplace(self._heads, (line[0][0], number, key))
            else:
                return Waiting(rank, line[0][1], key)
        return None

    def block(self) -> None:
        """The head's line can't be served: leave it for the rest of this pass."""
        heapq.heappop(self._heads)

"""What is due when: a work list derived from the State, rebuilt by replay, never part of its hash.

Entries are only hints. Whoever takes one looks at the State again, so a stale entry costs a look and nothing else, and
nothing ever has to be removed from the middle of the heap.
"""

from __future__ import annotations

import enum
import heapq


class Due(enum.IntEnum):
    """What to look at."""

    TIME_LIMIT = 1
    CONFIRM = 2
    RETRY = 3
    FORGET = 4
    HOLD = 5
    BUDGET = 6
    PATIENCE = 7
    """Somebody has waited long enough for devices to be kept for them."""
    GROWTH = 8
    """Elastic leases may grow into what has been idle for a while."""
    SHED = 9
    """The notice of slices that an elastic lease gives back is over."""
    BALANCE = 10
    """A pool that balances its projects by itself looks whether a node should change hands."""
    CUT = 20
    """Perhaps a card in MIG mode should be cut for somebody who waits."""


class Timers:
    """A heap of (due_ms, kind, id)."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, kind: Due, subject: str) -> None:
        """Remember to look at `subject` at `due_ms`."""
        heapq.heappush(self._heap, (due_ms, int(kind), subject))

    def next_due_ms(self) -> int | None:
        """When the next look is due."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> tuple[int, Due, str] | None:
        """Remove and give the earliest entry that is due, or None."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        due_ms, kind, subject = heapq.heappop(self._heap)
        return due_ms, Due(kind), subject

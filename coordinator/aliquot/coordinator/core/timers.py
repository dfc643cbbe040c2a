"""What is due when: a work list derived from the State, rebuilt by replay, never part of its hash.

Entries are only hints. Whoever takes one looks at the State again, so a stale entry costs a look and nothing else. It
costs memory, too, for as long as it lies there: a lease of a minute may have a time limit of a year. So what is not
due soon is kept in buckets of four seconds, from which it can be dropped again; only what is due within these seconds
is in order.
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
    MAINTENANCE = 11
    """A maintenance window enters its next phase, or what runs on its nodes is to be told to go."""
    FOLD = 12
    """There is more usage entry by entry than is to be kept so."""
    CUT = 20
    """Perhaps a card in MIG mode should be cut for somebody who waits."""


_Entry = tuple[int, int, str]
"""(due_ms, kind, subject)."""

_BUCKET_BITS = 12
"""A bucket is 4,096 ms."""


class Timers:
    """See the module's docstring. Adding and dropping cost O(1), taking O(log entries of four seconds)."""

    __slots__ = ("_far", "_near", "_numbers", "_opened")

    def __init__(self) -> None:
        self._near: list[_Entry] = []
        """A heap of what is in buckets that were opened."""
        self._far: dict[int, set[_Entry]] = {}
        """By bucket, none of them empty."""
        self._numbers: list[int] = []
        """A heap of the buckets' numbers; some may be of buckets that are empty by now."""
        self._opened = -1

    def __len__(self) -> int:
        return len(self._near) + sum(map(len, self._far.values()))

    def add(self, due_ms: int, kind: Due, subject: str) -> None:
        """Remember to look at `subject` at `due_ms`."""
        number = due_ms >> _BUCKET_BITS
        entry = (due_ms, int(kind), subject)
        if number <= self._opened:
            heapq.heappush(self._near, entry)
            return
        bucket = self._far.get(number)
        if bucket is None:
            self._far[number] = {entry}
            heapq.heappush(self._numbers, number)
            if len(self._numbers) > 2 * len(self._far) + 64:
                self._numbers = sorted(self._far)
        else:
            bucket.add(entry)

    def drop(self, due_ms: int, kind: Due, subject: str) -> None:
        """This look is not needed any more. One that is due within seconds may stay."""
        number = due_ms >> _BUCKET_BITS
        bucket = self._far.get(number)
        if bucket is not None:
            bucket.discard((due_ms, int(kind), subject))
            if not bucket:
                del self._far[number]

    def next_due_ms(self) -> int | None:
        """When the next look is due, or up to four seconds before that where it is not soon."""
        if self._near:
            return self._near[0][0]
        while self._numbers and self._numbers[0] not in self._far:
            heapq.heappop(self._numbers)
        return self._numbers[0] << _BUCKET_BITS if self._numbers else None

    def take_due(self, now_ms: int) -> tuple[int, Due, str] | None:
        """Remove and give the earliest entry that is due, or None."""
        while not self._near and self._numbers and self._numbers[0] << _BUCKET_BITS <= now_ms:
            self._opened = heapq.heappop(self._numbers)
            self._near = sorted(self._far.pop(self._opened, ()))
        if not self._near or self._near[0][0] > now_ms:
            return None
        due_ms, kind, subject = heapq.heappop(self._near)
        return due_ms, Due(kind), subject

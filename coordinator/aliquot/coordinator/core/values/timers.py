"""What is due when: a work list derived from the State, rebuilt by replay, never part of its hash.

Entries are hints: the State is looked at again, so a stale entry costs one look, and memory for as long as it lies
there (a lease of a minute may have a time limit of a year). So what is not due soon is kept in buckets of four seconds,
from which it can be dropped; only what is due within seconds is in order.

An entry stays until its work is done and it is taken.
"""

from __future__ import annotations

import enum
import heapq
from bisect import bisect_left, bisect_right, insort


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
    SHRINK = 9
    """The notice of slices that an elastic lease gives back is over."""
    MAINTENANCE = 11
    """A maintenance window enters its next phase, or what runs on its nodes is to be told to go."""
    FOLD = 12
    """There are more entries of usage than are to be kept."""
    PREEMPTED = 13
    """A lease that was preempted as often as is allowed may be again."""
    OFFENCE = 14
    """A lease that ended as `OVER_LIMIT` does not count against its tenant any more."""
    TOKEN = 15
    """A token expires."""
    INVITE = 16
    """An invite was over long ago and is forgotten."""
    HEALTH = 17
    """An incident goes on, or a device whose signs are bad is looked at again."""
    LOAN = 18
    """Whoever uses the share of a lease that ends is to go."""
    SUPPLY = 22
    """Perhaps a node should come, or go."""
    QUOTA = 24
    """A window of a quota opens or closes."""
    CUT = 20
    """Perhaps a card in MIG mode should be cut for somebody who waits."""


AFTER = (Due.CONFIRM, Due.PREEMPTED)
"""Due some time after something began: the State knows when that was, the settings how long after."""

TimerEntry = tuple[int, int, str]
"""(due_ms, kind, subject)."""

_BUCKET_BITS = 12
"""A bucket is 4,096 ms."""
_LAST_KIND = 1 << 30


class Timers:
    """See the module's docstring. Adding, dropping and taking cost O(log entries of four seconds), or little more."""

    __slots__ = ("_far", "_head", "_near", "_numbers", "_opened")

    def __init__(self) -> None:
        self._near: list[TimerEntry] = []
        """What is in buckets that were opened, in order, from `_head` on."""
        self._head = 0
        self._far: dict[int, set[TimerEntry]] = {}
        """By bucket, none of them empty."""
        self._numbers: list[int] = []
        """A heap of the buckets' numbers. The first is of one that there is; others may be of emptied ones."""
        self._opened = -1

    def __len__(self) -> int:
        return len(self._near) - self._head + sum(map(len, self._far.values()))

    def add(self, due_ms: int, kind: Due, subject: str) -> None:
        """Remember to look at `subject` at `due_ms`."""
        number = due_ms >> _BUCKET_BITS
        entry = (due_ms, int(kind), subject)
        if number <= self._opened:
            insort(self._near, entry, lo=self._head)
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
        """This look is not needed any more."""
        number = due_ms >> _BUCKET_BITS
        entry = (due_ms, int(kind), subject)
        bucket = self._far.get(number)
        if bucket is not None:
            bucket.discard(entry)
            if not bucket:
                del self._far[number]
                self._skip_emptied()
        elif number <= self._opened:
            index = bisect_left(self._near, entry, lo=self._head)
            del self._near[index : bisect_right(self._near, entry, lo=index)]

    def take(self, entry: TimerEntry) -> bool:
        """Remove an entry that was looked at; False where it is not there any more."""
        self.open(entry[0])
        index = bisect_left(self._near, entry, lo=self._head)
        if index == len(self._near) or self._near[index] != entry:
            return False
        if index > self._head:
            del self._near[index]
            return True
        self._head += 1
        if self._head * 2 > len(self._near):
            del self._near[: self._head]
            self._head = 0
        return True

    def _skip_emptied(self) -> None:
        while self._numbers and self._numbers[0] not in self._far:
            heapq.heappop(self._numbers)

    def open(self, now_ms: int) -> None:
        """Put what is due by then in order. From then on the same may be due twice: for a look that is under way, and
        for the next one.
        """
        while self._numbers and self._numbers[0] << _BUCKET_BITS <= now_ms:
            number = heapq.heappop(self._numbers)
            bucket = self._far.pop(number, None)
            if bucket is not None:
                self._opened = number
                self._near.extend(sorted(bucket))  # all of them later than what was opened before
        self._skip_emptied()

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next look is due, or up to four seconds before that where it is not soon."""
        if self._head < len(self._near):
            return self._near[self._head][0]
        if not self._numbers:
            return None
        start_ms = self._numbers[0] << _BUCKET_BITS
        return start_ms if start_ms > now_ms else min(self._far[self._numbers[0]])[0]

    def due(self, now_ms: int, limit: int) -> list[TimerEntry]:
        """The earliest entries that are due, in order; at most so many."""
        end = bisect_right(self._near, (now_ms, _LAST_KIND, ""), lo=self._head)
        found = self._near[self._head : min(end, self._head + limit)]
        if self._numbers and self._numbers[0] << _BUCKET_BITS <= now_ms:
            for number in self._split(now_ms)[0]:
                if len(found) >= limit:
                    break
                found += sorted(entry for entry in self._far[number] if entry[0] <= now_ms)
        return found[:limit]

    def next_after(self, now_ms: int) -> int | None:
        """When the next look is due that is not due yet, or up to four seconds before that where it is not soon."""
        index = bisect_right(self._near, (now_ms, _LAST_KIND, ""), lo=self._head)
        if index < len(self._near):
            return self._near[index][0]
        soon = (entry[0] for entry in self._far.get(now_ms >> _BUCKET_BITS, ()) if entry[0] > now_ms)
        earliest_ms = min(soon, default=None)
        if earliest_ms is not None:
            return earliest_ms
        number = self._split(now_ms)[1]
        return number << _BUCKET_BITS if number is not None else None

    def __contains__(self, entry: TimerEntry) -> bool:
        bucket = self._far.get(entry[0] >> _BUCKET_BITS)
        if bucket is not None:
            return entry in bucket
        index = bisect_left(self._near, entry, lo=self._head)
        return index < len(self._near) and self._near[index] == entry

    def _split(self, now_ms: int) -> tuple[list[int], int | None]:
        """The buckets that begin until then, in order, and the first that begins later: walks the heap's top."""
        begun: set[int] = set()
        later: int | None = None
        ahead = [0]
        while ahead:
            index = ahead.pop()
            if index >= len(self._numbers):
                continue
            number = self._numbers[index]
            there = number in self._far
            if number << _BUCKET_BITS <= now_ms or not there:
                ahead += (2 * index + 1, 2 * index + 2)
                if there:
                    begun.add(number)
            elif later is None or number < later:
                later = number
        return sorted(begun), later

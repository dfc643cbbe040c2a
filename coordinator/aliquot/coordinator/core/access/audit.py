"""The record of who did what: bounded, so that one who does very much pushes out their own acts.

When it is full, who has more than a twentieth of it loses their oldest act for each that is put down. For others, the
oldest goes of who has most; of those with equally many, of who has the oldest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """Somebody changed something."""

    number: int
    at_ms: int
    principal: str
    token_id: str
    peer: str
    action: str
    subject: str


class AuditRecord:
    """See the module's docstring. What is kept follows from what was put down, in its order."""

    def __init__(self, entries_max: int) -> None:
        self._max = entries_max
        self._share = entries_max // 20
        self._entries: dict[int, AuditEntry] = {}
        """By number, in order."""
        self._of: dict[str, deque[int]] = {}
        """Principal -> the numbers of its entries."""
        self._most: list[tuple[int, int, str]] = []
        """A heap of (number of entries below zero, the first of them, principal), with what was true before."""

    def append(self, entry: AuditEntry) -> None:
        """Put down one more."""
        self._entries[entry.number] = entry
        self._of.setdefault(entry.principal, deque()).append(entry.number)
        self._note(entry.principal)
        if len(self._entries) > self._max:
            own = len(self._of[entry.principal]) > self._share
            self._drop(entry.principal if own else self._whose())

    def extend(self, entries: Iterable[AuditEntry]) -> None:
        """Put down several."""
        for entry in entries:
            self.append(entry)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._of.clear()
        self._most.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AuditEntry]:
        return iter(self._entries.values())

    def __reversed__(self) -> Iterator[AuditEntry]:
        return reversed(self._entries.values())

    def _note(self, principal: str) -> None:
        numbers = self._of[principal]
        heapq.heappush(self._most, (-len(numbers), numbers[0], principal))
        if len(self._most) > 2 * (len(self._of) + self._max):
            self._most = [(-len(numbers), numbers[0], name) for name, numbers in self._of.items()]
            heapq.heapify(self._most)

    def _whose(self) -> str:
        """Who has most."""
        while True:
            count, first, principal = heapq.heappop(self._most)
            numbers = self._of.get(principal)
            if numbers is not None and (-len(numbers), numbers[0]) == (count, first):
                return principal

    def _drop(self, principal: str) -> None:
        """The oldest entry of somebody."""
        numbers = self._of[principal]
        del self._entries[numbers.popleft()]
        if numbers:
            self._note(principal)
        else:
            del self._of[principal]

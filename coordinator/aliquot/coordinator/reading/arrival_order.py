"""Lease ids in order of arrival, read a page at a time while leases come and go: the work for a page is bounded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class ArrivalOrder:
    """Lease ids in the order of their arrivals. Arrivals only rise, so adding is appending.

    Removing leaves a hole; when holes are the larger part the list is made anew, which costs O(1) per removal in the
    long run.
    """

    __slots__ = ("_arrivals", "_holes", "_ids")

    def __init__(self) -> None:
        self._arrivals: list[int] = []
        self._ids: list[str | None] = []
        self._holes = 0

    def __len__(self) -> int:
        return len(self._ids) - self._holes

    def add(self, arrival: int, lease_id: str) -> None:
        """Append. `arrival` is above all before it."""
        self._arrivals.append(arrival)
        self._ids.append(lease_id)

    def remove(self, arrival: int) -> None:
        """Take out the lease of this arrival, which must be there."""
        self._ids[bisect_right(self._arrivals, arrival) - 1] = None
        self._holes += 1
        if self._holes > 64 and self._holes * 2 > len(self._ids):
            kept = [pair for pair in zip(self._arrivals, self._ids, strict=True) if pair[1] is not None]
            self._arrivals = [arrival for arrival, _ in kept]
            self._ids = [lease_id for _, lease_id in kept]
            self._holes = 0

    def after(self, arrival: int) -> Iterator[tuple[int, str]]:
        """(arrival, lease id) of those that came later. Use it up before anything is added or removed."""
        for index in range(bisect_right(self._arrivals, arrival), len(self._ids)):
            lease_id = self._ids[index]
            if lease_id is not None:
                yield self._arrivals[index], lease_id

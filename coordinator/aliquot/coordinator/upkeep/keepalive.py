"""Which launchers still want their leases. Kept in memory only: a restart gives every lease its full TTL again.

A lease that no keep-alive has named for its TTL is expired by a command like any other, so that only a journalled fact
ever ends it. Time here is the monotonic clock: while the machine sleeps or this process stands still no keep-alive can
arrive, so none counts as late (`start_again`).

One heap entry per lease, looked at when it would expire and pushed back by however much it was renewed meanwhile:
renewing is one dictionary store, and the sweep touches each lease once per TTL.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from aliquot.common.clock import Clock
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.outbox import Follower

log = logging.getLogger(__name__)

EXPIRED_PER_SWEEP = 500
_STALE_MAX = 10_000
"""Entries of leases that have ended are dropped when they are more than this and than the others."""


Expire = Callable[[str, int], bool]
"""(lease id, its TTL in milliseconds) -> whether its end was submitted; if not, that has to wait."""


class KeepAlive(Follower):
    """See the module's docstring."""

    def __init__(self, clock: Clock, leases: Iterable[Lease]) -> None:
        """`leases` are those that are durable already."""
        self._clock = clock
        self._ttl_ms: dict[str, int] = {}
        self._until_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._held: dict[str, int] = {}
        for lease in leases:
            self.lease_changed(None, lease)

    def __len__(self) -> int:
        return len(self._ttl_ms)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Follow leases: each that lives and is not detached has a TTL, from when it became durable."""
        if new is None or new.ended_ms or new.end_reason:
            lease = new or old
            if lease is not None and (new is None or not new.requeue):
                self._ttl_ms.pop(lease.lease_id, None)
                self._until_ms.pop(lease.lease_id, None)
            return
        ttl_ms = new.request.ttl_ms
        if ttl_ms and new.lease_id not in self._ttl_ms:
            until_ms = self._clock.monotonic_ms() + ttl_ms
            self._ttl_ms[new.lease_id] = ttl_ms
            self._until_ms[new.lease_id] = until_ms
            heapq.heappush(self._heap, (until_ms, new.lease_id))

    def renew(self, lease_id: str) -> int | None:
        """A keep-alive has come; returns the TTL in milliseconds, or None if the lease has none."""
        ttl_ms = self._ttl_ms.get(lease_id)
        if ttl_ms is not None:
            self._until_ms[lease_id] = self._clock.monotonic_ms() + ttl_ms
        return ttl_ms

    @contextmanager
    def holding(self, lease_id: str) -> Iterator[None]:
        """A caller waits for this lease on an open call: that is a keep-alive as long as it lasts."""
        self._held[lease_id] = self._held.get(lease_id, 0) + 1
        try:
            yield
        finally:
            left = self._held[lease_id] - 1
            if left:
                self._held[lease_id] = left
            else:
                del self._held[lease_id]
            self.renew(lease_id)

    def start_again(self) -> None:
        """Begin every TTL anew: this process stood still, and no keep-alive could arrive."""
        now_ms = self._clock.monotonic_ms()
        for lease_id, ttl_ms in self._ttl_ms.items():
            self._until_ms[lease_id] = now_ms + ttl_ms

    def sweep(self, expire: Expire) -> int:
        """Expire leases that had no keep-alive for their TTL, at most `EXPIRED_PER_SWEEP`; returns how many."""
        now_ms = self._clock.monotonic_ms()
        expired = 0
        if len(self._heap) > 2 * len(self._until_ms) + _STALE_MAX:
            self._heap = [(until_ms, lease_id) for lease_id, until_ms in self._until_ms.items()]
            heapq.heapify(self._heap)
        while self._heap and self._heap[0][0] <= now_ms and expired < EXPIRED_PER_SWEEP:
            _, lease_id = self._heap[0]
            until_ms = self._until_ms.get(lease_id)
            if until_ms is None:
                heapq.heappop(self._heap)
                continue
            if lease_id in self._held:
                until_ms = now_ms + self._ttl_ms[lease_id]
            if until_ms > now_ms:
                heapq.heapreplace(self._heap, (until_ms, lease_id))
                continue
            if not expire(lease_id, self._ttl_ms[lease_id]):
                break
            expired += 1
            # If the command should fail, the lease is looked at again in a while.
            heapq.heapreplace(self._heap, (now_ms + max(self._ttl_ms[lease_id], 1_000), lease_id))
        if expired:
            log.info("%d leases had no keep-alive in time", expired)
        return expired

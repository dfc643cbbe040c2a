"""Callers that wait for a lease to be GRANTED, to be ACTIVE, or to be gone.

Their conditions look at durable records only, and are looked at only when the lease they wait for has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.errors import Overloaded

Condition = Callable[[Lease], bool]

WAITERS_MAX = 15_000
"""Calls that wait at the same time; beyond it new ones are told to come back."""


def granted(lease: Lease) -> bool:
    """Capacity is durably held, or the lease is over."""
    return lease.state is not LeaseState.QUEUED


def active(lease: Lease) -> bool:
    """Every agent has set and read back its limits, or the lease is over."""
    return lease.state not in (LeaseState.QUEUED, LeaseState.GRANTED)


def ended(lease: Lease) -> bool:
    """Nothing is held any more."""
    return lease.ended


class Waiters:
    """Futures by lease."""

    def __init__(self) -> None:
        self._by_lease: dict[str, list[tuple[Condition, asyncio.Future[None]]]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def check_room(self) -> None:
        """Raises Overloaded where no more callers may wait. To be called before a request is submitted."""
        if self._waiting >= WAITERS_MAX:
            raise Overloaded(f"{WAITERS_MAX} calls wait for leases, which is the bound", retry_after_ms=2_000)

    async def wait(self, lease: Lease, condition: Condition, timeout_s: float) -> None:
        """Until the lease fulfils `condition` or is forgotten, or `timeout_s` has passed: look at the View then."""
        if condition(lease):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (condition, future)
        self._by_lease.setdefault(lease.lease_id, []).append(entry)
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            waiters = self._by_lease.get(lease.lease_id)
            if waiters is not None and entry in waiters:
                waiters.remove(entry)
                if not waiters:
                    del self._by_lease[lease.lease_id]

    def changed(self, lease_id: str, lease: Lease | None) -> None:
        """A lease has a new durable record, or none any more."""
        waiters = self._by_lease.get(lease_id)
        if waiters is None:
            return
        for condition, future in waiters:
            if not future.done() and (lease is None or condition(lease)):
                future.set_result(None)

    def wake_all(self) -> None:
        """Wake all callers: the State was read anew, or the coordinator stops."""
        for waiters in self._by_lease.values():
            for _, future in waiters:
                if not future.done():
                    future.set_result(None)

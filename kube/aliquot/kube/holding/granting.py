"""Grants for pods and gangs, each at most once, and undone when they came to nothing.

A lease's idempotency key is the pod's uid (or the gang's name): while a lease of an attempt lives, the pool itself
refuses a second. A next attempt is made only after the one before has ended. What an earlier process of ours has left
behind is not used, because another process may be about to clear it away: it is released, and granted anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from aliquot.client import (
    IdempotencyMismatch,
    Lease,
    LeaseNotFound,
    MemberPlace,
    PoolError,
    Request,
    WaitUntil,
)
from aliquot.common.latest import Latest
from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.names import LEASE_ATTEMPT
from aliquot.kube.holding.batching import GrantBatches
from aliquot.kube.holding.book import LeaseBook, kube_lease

log = logging.getLogger(__name__)

_ATTEMPTS_MAX: Final = 64
_SUBJECTS_KEPT: Final = 50_000
_GRANT_S: Final = 10.0


class Granter:
    """See the module's docstring."""

    def __init__(self, book: LeaseBook) -> None:
        self.batches = GrantBatches(book.pool)
        self._pool = book.pool
        self._book = book
        self._attempts: Latest[str, int] = Latest(_SUBJECTS_KEPT)
        """The attempt that comes next, of subjects that have had some."""

    async def for_pod(self, uid: str, request: Request, node: str) -> KubeLease:
        """A lease for this pod on this node, or PlacementRefused and what else `grant_on` raises."""
        left = self._book.of_pod(uid)
        if left is not None:
            await self.undo(left, "an earlier bind did not come to its end", wait=True)

        async def grant(asked: Request, key: str) -> Lease:
            return await self.batches.grant(asked, node, key)

        return await self._granted(uid, request, grant)

    async def make_room(self, subject: str, request: Request) -> KubeLease | None:
        """A lease that waits while the pool takes back what is in its way; None: it would take nothing back.

        `subject` is the uid of a pod, or `NAMESPACE/NAME` of a gang.

        The pool keeps the room together as it becomes free, so that nobody else moves in between. Raises what
        `allocate` raises.
        """
        waiting = replace(request, no_queue=False)
        if not (await self._pool.explain(waiting)).would_preempt:
            return None
        return await self._granted(subject, waiting, self._ask)

    async def for_gang(self, namespace: str, gang: str, request: Request) -> KubeLease:
        """One lease for all members, wherever they fit together, now or not at all: what `allocate` raises."""
        now_or_never = replace(request, no_queue=True)

        async def grant(asked: Request, key: str) -> Lease:
            return await self._pool.allocate(asked, until=WaitUntil.GRANTED, wait_s=_GRANT_S, key=key)

        return await self._granted(f"{namespace}/{gang}", now_or_never, grant)

    async def for_job(self, namespace: str, gang: str, request: Request) -> KubeLease:
        """One lease for all members, which may wait in the pool's queue: what `allocate` raises."""
        return await self._granted(f"{namespace}/{gang}", request, self._ask)

    async def exactly(
        self, namespace: str, gang: str, request: Request, node: str, devices: Sequence[str]
    ) -> KubeLease:
        """A lease on these devices of a node, or not at all: what `grant_on` raises."""
        place = MemberPlace(node, tuple(devices))

        async def grant(asked: Request, key: str) -> Lease:
            return await self._pool.grant_on(asked, [place], until=WaitUntil.GRANTED, wait_s=_GRANT_S, key=key)

        return await self._granted(f"{namespace}/{gang}", request, grant)

    async def undo(self, lease: KubeLease, why: str, *, wait: bool = False) -> bool:
        """Release a lease; False where the coordinator can't be reached, and reconciling does it later."""
        try:
            self._book.take(await self._pool.release(lease.lease_id, wait_gone=wait, reason=why, timeout_s=_GRANT_S))
        except LeaseNotFound:
            return True
        except PoolError as error:
            log.warning("lease %s could not be released now: %s", lease.lease_id, error.message)
            return False
        return True

    async def _ask(self, asked: Request, key: str) -> Lease:
        return await self._pool.allocate(asked, until=WaitUntil.QUEUED, wait_s=_GRANT_S, key=key)

    async def _granted(
        self, subject: str, request: Request, grant: Callable[[Request, str], Awaitable[Lease]]
    ) -> KubeLease:
        first = self._attempts.get(subject, 0)
        for attempt in range(first, first + _ATTEMPTS_MAX):
            # A key for each attempt: while one's lease lives there can be no second.
            asked, key = request, subject
            if attempt:
                key = f"{subject}#{attempt}"
                asked = replace(request, labels={**request.labels, LEASE_ATTEMPT: str(attempt)})
            try:
                lease = await grant(asked, key)
            except IdempotencyMismatch:
                # That attempt was for another place. It has ended, or it must before there is a next.
                await self._end_attempt(subject, request, attempt)
                continue
            found = self._book.take(lease) or kube_lease(lease)
            if found.live and found.state != "RELEASING":
                self._attempts[subject] = attempt
                return found
        raise IdempotencyMismatch(
            f"{subject}: {_ATTEMPTS_MAX} leases for it have ended", hint="delete the pod; its owner makes another"
        )

    async def _end_attempt(self, subject: str, request: Request, attempt: int) -> None:
        async for lease in self._pool.leases(tenant=request.tenant):
            ours = self._book.take(lease)
            if (
                ours is not None
                and ours.attempt == attempt
                and subject in {ours.pod_uid, f"{ours.namespace}/{ours.gang}"}
            ):
                await self.undo(ours, "granted for another place", wait=True)


class Locks:
    """One at a time for each name; kept only as long as somebody holds or waits."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def held(self) -> set[str]:
        """Names that somebody holds or waits for."""
        return set(self._locks)

    def __call__(self, name: str) -> asyncio.Lock:
        """`async with locks(name):`, which keeps the lock as long as it is used."""
        return self._locks.setdefault(name, asyncio.Lock())

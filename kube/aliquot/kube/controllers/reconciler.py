"""Carries out what reconciling decides: soon after a change, and for everything from time to time.

It runs in the extender and in the controllers alike: what it does is idempotent, and either alone is enough, so that
leases are released when pods are deleted whichever of the two is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

from aliquot.client import LeaseNotFound, PoolError
from aliquot.kube.api import objects
from aliquot.kube.api.errors import KubeError, level_of
from aliquot.kube.api.objects import Regarding
from aliquot.kube.controllers.subjects import Subject, Subjects, of_lease, of_pod
from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.pods import PodRecord, flatten
from aliquot.kube.core.reconciling import Action, Ask, Evict, Look, Release, reconcile
from aliquot.kube.holding.parts import Parts

log = logging.getLogger(__name__)

_GATHER_S: Final = 0.05
_EVERY_S: Final = 10.0
_PORTION: Final = 500
"""Subjects that are looked at in one go, before others have a turn."""
_AT_ONCE: Final = 16
_LOST_KEPT: Final = 10_000


class Reconciler:
    """See the module's docstring. `under_way` says what this process is binding."""

    def __init__(self, parts: Parts, *, under_way: Callable[[], set[str]] = set) -> None:
        book, pods = parts.book, parts.pods
        self._client, self._teller = parts.client, parts.teller
        self._book, self._pods = book, pods
        self._now_ms, self._patience = parts.now_ms, parts.patience
        self._under_way = under_way
        self._wake = asyncio.Event()
        self._touched: set[Subject] = set()
        self._lost: dict[str, KubeLease] = {}
        """Leases that pods say they have and the pool has not, or not any more."""
        self._subjects = Subjects(book, pods, self._lost)
        book.on_lease.append(lambda lease: self._touch(of_lease(lease)))
        pods.on_change.append(self._pod_changed)

    async def run(self) -> None:
        """Reconcile until cancelled. Nothing is decided before both sides are known."""
        await self._book.synced.wait()
        await self._pods.informer.synced.wait()
        due = 0.0
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if loop.time() >= due:
                await self.once()
                due = loop.time() + _EVERY_S
            elif self._pods.informer.trustworthy:
                touched, self._touched = self._touched, set()
                await self._reconcile(touched)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._wake.wait()
                    await asyncio.sleep(_GATHER_S)

    async def once(self) -> int:
        """A pass over everything; returns how much there was to do."""
        if not self._pods.informer.trustworthy:
            return 0
        self._touched.clear()
        every, count = sorted(self._subjects.every()), 0
        for begin in range(0, len(every), _PORTION):
            count += await self._reconcile(every[begin : begin + _PORTION])
            await asyncio.sleep(0)
        return count

    async def _reconcile(self, subjects: Iterable[Subject]) -> int:
        pods, leases = self._subjects.sides(subjects)
        actions = reconcile(
            pods,
            leases,
            self._now_ms(),
            under_way=self._under_way(),
            deleted=self._pods.deleted,
            patience=self._patience,
        )
        gate = asyncio.Semaphore(_AT_ONCE)

        async def carry_out(action: Action) -> None:
            async with gate:
                try:
                    await self._carry_out(action)
                except (PoolError, KubeError) as error:
                    log.log(level_of(error), "%s could not be done, and is tried again: %s", action, error.message)

        await asyncio.gather(*map(carry_out, actions))
        return len(actions)

    async def _carry_out(self, action: Action) -> None:
        match action:
            case Release(lease_id, why):
                await self._release(lease_id, why)
            case Look(lease_id, why):
                if not await self._in_use(self._book.get(lease_id)):
                    await self._release(lease_id, why)
            case Evict():
                await self._evict(action)
            case Ask(lease_id):
                await self._ask(lease_id)

    async def _release(self, lease_id: str, why: str) -> None:
        log.info("lease %s is released: %s", lease_id, why)
        try:
            self._book.take(await self._book.pool.release(lease_id, reason=why))
        except LeaseNotFound:
            log.info("lease %s is not known to the pool any more", lease_id)

    async def _in_use(self, lease: KubeLease | None) -> bool:
        """Whether a pod uses it, by what the API server says now."""
        if lease is None:
            return True
        if lease.gang:
            return await self._gang_in_use(lease)
        pod = next((pod for pod in self._pods if pod.uid == lease.pod_uid), None)
        for namespace, name in [(pod.namespace, pod.name)] if pod else await self._find(lease):
            found = await objects.get_pod(self._client, namespace, name)
            if found is not None and found.metadata.uid == lease.pod_uid:
                return self._uses(flatten(found), lease)
        return False

    def _uses(self, pod: PodRecord, lease: KubeLease) -> bool:
        if pod.over:
            return False
        if pod.node:
            return pod.lease_id == lease.lease_id
        return self._now_ms() - lease.granted_ms <= self._patience.for_pod(lease)

    async def _find(self, lease: KubeLease) -> list[tuple[str, str]]:
        """The pod of a lease by the lease's name, which is the pod's."""
        whole = await self._book.pool.get(lease.lease_id)
        namespace, _, name = whole.name.partition("/")
        return [(namespace, name)] if name else []

    async def _gang_in_use(self, lease: KubeLease) -> bool:
        """Pods of a gang are listed afresh; those that are bound go with the lease, as a gang is all or nothing."""
        pods = [flatten(pod) for pod in await objects.pods_with_label(self._client, lease.namespace, lease.gang)]
        bound = [pod for pod in pods if pod.lease_id == lease.lease_id and pod.node and not pod.over]
        if len({pod.member for pod in bound}) >= lease.size:
            return True
        waiting = any(not pod.node and not pod.over for pod in pods)
        young = self._now_ms() - lease.granted_ms <= self._patience.gang_ms
        if (bound and not waiting) or (young and (bound or waiting)):
            return True
        for pod in bound:
            why = "not all members of its gang could be bound"
            await self._evict(Evict(pod.namespace, pod.name, pod.uid, lease.lease_id, why))
        return False

    async def _evict(self, action: Evict) -> None:
        if await objects.delete_pod(self._client, action.namespace, action.name, action.uid):
            log.info("pod %s/%s is deleted: %s", action.namespace, action.name, action.why)
            about = Regarding("Pod", action.namespace, action.name, action.uid)
            self._teller.tell(about, "AliquotLeaseEnded", action.why, warning=True)

    async def _ask(self, lease_id: str) -> None:
        try:
            self._book.take(await self._book.pool.get(lease_id))
        except LeaseNotFound:
            if len(self._lost) >= _LOST_KEPT:
                self._lost.clear()
            self._lost[lease_id] = KubeLease(
                lease_id, "ENDED", 0, "", "", "", "", 0, 1, (), end_reason="the pool does not know it"
            )
        for pod in self._pods:
            if pod.lease_id == lease_id:
                self._touch(of_pod(pod))

    def _pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        for pod in (before, after):
            if pod is not None and (after is None or after.over or pod.node):
                self._touch(of_pod(pod))

    def _touch(self, subject: Subject) -> None:
        self._touched.add(subject)
        self._wake.set()

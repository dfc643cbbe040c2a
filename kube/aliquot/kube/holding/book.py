"""The cluster's leases as the pool has them, followed from a list and a watch; and which nodes have changed.

Several processes of ours may run, and any may restart: none keeps state of its own. A lease is known again by its
labels.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from aliquot.client import AsyncPool, Lease, LeaseChanged, NodeChanged, PoolError, Resynced, Slice, SliceState
from aliquot.common.latest import Latest
from aliquot.kube.core import names
from aliquot.kube.core.leases import ENDED, KubeLease, Part

log = logging.getLogger(__name__)

_ENDED_KEPT: Final = 20_000
_GONE: Final = frozenset({SliceState.GONE, SliceState.FAILED})
_PAUSE_S: Final = 1.0


def now_ms() -> int:
    """Wall time, for comparing with the coordinator's: patience is far longer than clocks differ."""
    return time.time_ns() // 1_000_000


def kube_lease(lease: Lease) -> KubeLease:
    """What is kept of a lease of ours."""
    labels = lease.labels
    attempt = labels.get(names.LEASE_ATTEMPT, "")
    return KubeLease(
        lease_id=lease.lease_id,
        state=str(lease.state),
        granted_ms=lease.granted_ms or lease.created_ms,
        namespace=labels.get(names.LEASE_NAMESPACE, ""),
        pod_uid=labels.get(names.LEASE_POD_UID, ""),
        gang=labels.get(names.LEASE_GANG, ""),
        owner=labels.get(names.LEASE_OWNER, ""),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        size=lease.gang_size or 1,
        parts=tuple(map(_part, lease.slices)),
        gpu=lease.gpu,
        end_reason=lease.end_reason,
        seq=lease.seq,
        shape=lease.shape,
        acknowledged_shape=lease.acknowledged_shape,
        requeues=lease.requeues,
    )


def _part(part: Slice) -> Part:
    tier = "" if part.tier.value == "UNSPECIFIED" else part.tier.value.lower()
    return Part(
        part.node_name or part.node_id,
        part.member,
        part.device_uuid,
        part.share_milli,
        part.memory_bytes,
        tier,
        gone=part.state in _GONE,
        shed=part.shed,
    )


class LeaseBook:
    """See the module's docstring. `run` follows; until `synced` nothing may be decided by it."""

    def __init__(self, pool: AsyncPool, cluster: str) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Of each live lease of ours: when the pool says it was granted, and when that was seen."""
        self.pool = pool
        self.cluster = cluster
        self.synced = asyncio.Event()
        self.on_nodes: list[Callable[[Iterable[str]], None]] = []
        """Told the names of nodes on which something changed."""
        self.on_lease: list[Callable[[KubeLease], None]] = []
        """Told each change of a lease of ours."""
        self.on_resync: list[Callable[[], None]] = []
        """Told that changes may have been missed."""
        self.on_freed: list[Callable[[], None]] = []
        """Told that something may fit which did not: a lease of anybody ended, a node changed."""
        self._live: dict[str, KubeLease] = {}
        self._ended: Latest[str, KubeLease] = Latest(_ENDED_KEPT)
        self._of_pod: dict[str, str] = {}
        self._of_gang: dict[tuple[str, str], str] = {}
        self._nodes_of: dict[str, tuple[str, ...]] = {}
        """Of every live lease of the pool, whoever's: its nodes, which change when it ends."""

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[KubeLease]:
        return iter(list(self._live.values()))

    def known(self) -> Iterator[KubeLease]:
        """Live ones, and those that ended lately."""
        yield from list(self._live.values())
        yield from list(self._ended.values())

    def get(self, lease_id: str) -> KubeLease | None:
        """By id; also one that ended lately."""
        return self._live.get(lease_id) or self._ended.get(lease_id)

    def of_pod(self, uid: str) -> KubeLease | None:
        """The live lease of a pod."""
        return self._live.get(self._of_pod.get(uid, ""))

    def of_gang(self, namespace: str, gang: str) -> KubeLease | None:
        """The live lease of a gang."""
        return self._live.get(self._of_gang.get((namespace, gang), ""))

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
            except PoolError as error:
                log.warning("leases can't be followed: %s", error.explain())
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self) -> None:
        # The number is taken before the list: what happens between the two comes twice, and the later counts.
        since = (await self.pool.status()).seq
        self._take_all([lease async for lease in self.pool.leases()])
        self.synced.set()
        events = self.pool.watch(nodes=True, after_seq=since)
        async for event in events:
            if isinstance(event, LeaseChanged):
                self.take(event.lease)
            elif isinstance(event, NodeChanged):
                self._dirty((event.node.name or event.node.node_id,))
                self._tell_freed()
            elif isinstance(event, Resynced):
                self._take_all(event.leases)

    def _take_all(self, leases: Iterable[Lease]) -> None:
        found = list(leases)
        present = {lease.lease_id for lease in found}
        for lease_id in [known for known in self._live if known not in present]:
            self._end(self._live[lease_id])
        self._nodes_of.clear()
        for lease in found:
            self.take(lease)
        for tell in self.on_resync:
            tell()
        self._tell_freed()

    def take(self, lease: Lease) -> KubeLease | None:
        """What an answer or an event says of a lease; older ones than what is known change nothing. None: not ours."""
        nodes = tuple(name for part in lease.slices for name in (part.node_name or part.node_id,))
        before = self._nodes_of.get(lease.lease_id, ())
        if lease.state == ENDED:
            self._nodes_of.pop(lease.lease_id, None)
        else:
            self._nodes_of[lease.lease_id] = nodes
        if before or nodes:
            self._dirty((*before, *nodes) if before != nodes else nodes)
        if before and (lease.state == ENDED or before != nodes):
            self._tell_freed()
        if lease.labels.get(names.LEASE_CLUSTER) != self.cluster:  # several may share one pool
            return None
        ours = kube_lease(lease)
        known = self.get(lease.lease_id)
        if known is not None and known.seq > ours.seq:
            return known
        ours = replace(ours, granted_ms=self._since_ms(ours))
        if ours.live:
            self._keep(ours)
        else:
            self._end(ours)
        for tell in self.on_lease:
            tell(ours)
        return ours

    def _since_ms(self, lease: KubeLease) -> int:
        """When this grant was first seen here, by this machine's clock: others' clocks may differ by hours."""
        granted_ms, seen_ms = self._seen.get(lease.lease_id, (-1, 0))
        if granted_ms != lease.granted_ms:
            seen_ms = now_ms()
            self._seen[lease.lease_id] = lease.granted_ms, seen_ms
        return seen_ms

    def _keep(self, lease: KubeLease) -> None:
        self._live[lease.lease_id] = lease
        if lease.gang:
            self._of_gang[lease.namespace, lease.gang] = lease.lease_id
        elif lease.pod_uid:
            self._of_pod[lease.pod_uid] = lease.lease_id

    def _end(self, lease: KubeLease) -> None:
        self._live.pop(lease.lease_id, None)
        self._seen.pop(lease.lease_id, None)
        if self._of_pod.get(lease.pod_uid) == lease.lease_id:
            del self._of_pod[lease.pod_uid]
        if self._of_gang.get((lease.namespace, lease.gang)) == lease.lease_id:
            del self._of_gang[lease.namespace, lease.gang]
        if lease.live:
            return  # it is missing in a list: how it ended is not known, and is asked when it matters
        self._ended[lease.lease_id] = lease

    def _tell_freed(self) -> None:
        for tell in self.on_freed:
            tell()

    def _dirty(self, nodes: Iterable[str]) -> None:
        for tell in self.on_nodes:
            tell(nodes)

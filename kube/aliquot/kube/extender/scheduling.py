"""What the extender answers. It keeps nothing that a restart would lose.

Filter and prioritise ask the pool what fits (`Fits`), for advice. Bind decides: `GrantOn` places exactly there or
refuses, under the pod's uid as key, and the Binding carries the assignment; where the Binding is refused, the grant is
released. Whatever can't be known is an error to the scheduler, which tries again: this fails closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from aliquot.client import Explanation, NeverFits, PoolError
from aliquot.common.errors import AliquotError
from aliquot.common.latest import Latest
from aliquot.common.limits import MAX_NODE_IDS_PER_REQUEST
from aliquot.kube.api import objects
from aliquot.kube.api.errors import KubeError
from aliquot.kube.api.objects import Regarding
from aliquot.kube.core.extending import (
    BindArgs,
    BindResult,
    FilterArgs,
    FilterResult,
    HostPriority,
    MetaVictims,
    PreemptArgs,
    PreemptResult,
    scores,
    split,
)
from aliquot.kube.core.leases import KubeLease, assignment_of
from aliquot.kube.core.names import LEASE_OWNER, ROOM_OWNER
from aliquot.kube.core.pods import Gang, gang_of, may_preempt
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.extender import binding
from aliquot.kube.extender.gangs import GangPlaces, NotNow
from aliquot.kube.extender.waking import Waker
from aliquot.kube.holding.fits import FitsCache
from aliquot.kube.holding.granting import Granter, Locks
from aliquot.kube.holding.parts import Parts
from aliquot.kube.holding.requests import PodRequest
from aliquot.kube.holding.telling import why_not

log = logging.getLogger(__name__)

_SEEN_KEPT: Final = 10_000
_EXPLAINED_KEPT: Final = 256
_EXPLAINED_KEPT_S: Final = 2.0


class _Seen(NamedTuple):
    """A pod as it was when it was filtered, and what it asks for."""

    pod: RawPod
    asked: PodRequest | None
    gang: Gang | None


class Extender:
    """See the module's docstring."""

    def __init__(self, parts: Parts) -> None:
        book = parts.book
        self.fits = FitsCache(parts.pool)
        self.locks = Locks()
        self._pool, self._client, self._requests, self._teller = parts.pool, parts.client, parts.requests, parts.teller
        self._book, self._pods = book, parts.pods
        self._granter = Granter(book)
        self.gangs = GangPlaces(book, self._granter, parts.pods)
        self.waker = Waker(parts.client)
        self._seen: Latest[str, _Seen] = Latest(_SEEN_KEPT)
        """Pods that were filtered, because a bind names its pod only."""
        self._explained: Latest[str, tuple[float, Explanation]] = Latest(_EXPLAINED_KEPT)
        book.on_nodes.append(self.fits.dirty)
        book.on_resync.append(self.fits.clear)
        book.on_freed.append(self.waker.freed)
        self.fits.on_given_back.append(self.waker.freed)
        book.on_lease.append(self._room_changed)
        self.gangs.on_reserved.append(self.waker.freed)

    async def run(self) -> None:
        """What is done beside answers, until cancelled; then what they began is ended."""
        try:
            await self.waker.run()
        finally:
            await self.fits.close()
            await self._granter.batches.close()

    def under_way(self) -> set[str]:
        """Uids of pods, and keys of gangs, that are dealt with now."""
        return self.locks.held() | self.gangs.locks.held()

    # ---------------------------------------------------------------------------------------------------- filter

    async def filter(self, args: FilterArgs) -> FilterResult:
        """Which of the nodes can take the pod now."""
        asked_at = asyncio.get_running_loop().time()
        found = await self._filter(args)
        if found.node_names or not args.node_names:
            self.waker.forget(args.pod.metadata.uid)
        else:
            self.waker.refused(args.pod, asked_at)
        return found

    async def _filter(self, args: FilterArgs) -> FilterResult:
        if args.node_names is None:
            return FilterResult(error="aliquot: no NodeNames; set nodeCacheCapable: true for this extender")
        pod, nodes = args.pod, args.node_names
        try:
            asked = await self._requests.of(pod)
            if asked is None:
                return FilterResult(nodes)
            gang = gang_of(pod)
            self._seen[pod.metadata.uid] = _Seen(pod, asked, gang)
            blind = self._blind()
            if blind:
                return FilterResult(error=blind)
            if gang is not None:
                return await self._filter_gang(pod, gang, asked, nodes)
            room = self._room_of(pod.metadata.uid)
            if room is not None and room.holding:
                return _only(room.node_of(0), nodes, "the room that was made for it is")
            result = split(nodes, await self.fits.obstacles(asked.kind, asked.request, nodes))
            if not result.node_names and nodes and room is None and not self.fits.turned_away(asked.kind):
                explanation = await self._explain(pod, asked)
                if explanation.would_preempt and may_preempt(pod):
                    await self._make_room(pod, asked, nodes)
            return result
        except (PoolError, KubeError) as error:
            return FilterResult(error=f"aliquot: {error.message}")
        except AliquotError as error:
            # The pod itself is wrong: no node, and no preemption, would help.
            self._tell(pod, "AliquotRequestInvalid", error.explain())
            return FilterResult(hopeless=dict.fromkeys(nodes, f"aliquot: {error.message}"))

    async def _filter_gang(self, pod: RawPod, gang: Gang, asked: PodRequest, nodes: Sequence[str]) -> FilterResult:
        found = await self.gangs.place(pod, gang, asked, nodes)
        if isinstance(found, NotNow):
            self._tell(pod, "AliquotGangImpossible" if found.hopeless else "AliquotGangWaiting", found.why)
            told = dict.fromkeys(nodes, f"aliquot: {found.why}")
            return FilterResult(hopeless=told) if found.hopeless else FilterResult(failed=told)
        return _only(found.node, nodes, f"member {found.member} of gang {gang.name} is")

    async def _explain(self, pod: RawPod, asked: PodRequest) -> Explanation:
        """Tell the pod, by an event, what it waits for. Pods of one kind share an answer for a moment."""
        now = asyncio.get_running_loop().time()
        at, explanation = self._explained.get(asked.kind, (0.0, None))
        if explanation is None or now - at > _EXPLAINED_KEPT_S:
            explanation = await self._pool.explain(asked.request)
            self._explained[asked.kind] = (now, explanation)
        self._tell(pod, "AliquotImpossible" if explanation.impossible else "AliquotWaiting", why_not(explanation))
        return explanation

    async def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        """How good nodes are, 0 to 10. Nodes are compared within one answer, so all are asked about again."""
        nodes = args.node_names or []
        try:
            # Right after its filter, so of the same pod.
            seen = self._seen.get(args.pod.metadata.uid)
            asked = seen.asked if seen is not None else await self._requests.of(args.pod)
            if asked is None or len(nodes) < 2:
                return scores(dict.fromkeys(nodes, 0))
            return scores(await self.fits.scores(asked.kind, asked.request, nodes))
        except AliquotError as error:
            log.warning("no scores for %s: %s", args.pod.metadata.name, error.message)
            return scores(dict.fromkeys(nodes, 0))

    # ------------------------------------------------------------------------------------------------------ bind

    async def bind(self, args: BindArgs) -> BindResult:
        """Grant, then bind; undone where the second fails."""
        async with self.locks(args.uid):
            try:
                return BindResult(await self._bind(args))
            except AliquotError as error:
                return BindResult(f"aliquot: {error.message}")

    async def _bind(self, args: BindArgs) -> str:
        seen = self._seen.get(args.uid) or await self._read(args)
        if seen is None:
            return "aliquot: the pod is gone"
        pod, asked, gang = seen
        if asked is None:
            outcome, why = await binding.bind(self._client, args.namespace, args.name, args.uid, args.node, {})
            return "" if outcome is binding.Outcome.BOUND else f"aliquot: {why}"
        blind = self._blind()
        if blind:
            return blind
        if gang is not None:
            place = self.gangs.placed(args.uid, gang)
            if place is not None:
                waits = await self.gangs.together(place.lease)
                if waits:
                    self._tell(pod, "AliquotGangWaiting", waits)
                    return f"aliquot: {waits}"
                place = self.gangs.placed(args.uid, gang)  # its lease may have ended meanwhile
            if place is None or place.node != args.node:
                return f"aliquot: gang {gang.name} has no place for this pod on {args.node} any more"
            return await self._bound(args, place.lease, place.member, shared=True)
        room = self._room_of(args.uid)
        if room is not None and room.holding and room.node_of(0) == args.node:
            return await self._bound(args, room, 0, shared=False)
        try:
            with self.fits.binding(asked.kind, args.node):
                lease = await self._granter.for_pod(args.uid, asked.request, args.node)
        except NeverFits as error:
            self._tell(pod, "AliquotImpossible", error.message)
            raise
        return await self._bound(args, lease, 0, shared=False)

    async def _bound(self, args: BindArgs, lease: KubeLease, member: int, *, shared: bool) -> str:
        outcome, why = await binding.bind(
            self._client, args.namespace, args.name, args.uid, args.node, assignment_of(lease, member)
        )
        if outcome is binding.Outcome.BOUND:
            self._seen.pop(args.uid, None)
            return ""
        if outcome is binding.Outcome.REFUSED and not shared:
            await self._granter.undo(lease, f"the pod could not be bound: {why}"[:200])
        return f"aliquot: {why}"

    async def _read(self, args: BindArgs) -> _Seen | None:
        """A pod that was filtered by another process, or long ago."""
        pod = await objects.get_pod(self._client, args.namespace, args.name)
        if pod is None or pod.metadata.uid != args.uid:
            return None
        return _Seen(pod, await self._requests.of(pod), gang_of(pod))

    # --------------------------------------------------------------------------------------------------- preempt

    async def preempt(self, args: PreemptArgs) -> PreemptResult:
        """Have the pool make room on the proposed nodes; what is answered is the scheduler's own to evict."""
        try:
            return PreemptResult(await self._preempt(args.pod, args.victims or {}))
        except AliquotError as error:
            log.warning("no preemption for %s: %s", args.pod.metadata.name, error.message)
            return PreemptResult()

    async def _preempt(self, pod: RawPod, proposed: Mapping[str, MetaVictims]) -> Mapping[str, MetaVictims]:
        asked = await self._requests.of(pod)
        if asked is None:
            return proposed
        gang = gang_of(pod)
        if gang is not None:
            if await self.gangs.make_room(pod, gang, asked, list(proposed)):
                self._tell(pod, "AliquotGangWaiting", f"room is made for gang {gang.name}")
            return {}  # one member's room is no gang's: nothing is the scheduler's to evict
        room = self._room_of(pod.metadata.uid)
        if room is not None:
            fitting = [room.node_of(0)] if room.holding else []
        else:
            obstacles = await self.fits.obstacles(asked.kind, asked.request, list(proposed))
            fitting = [node for node in proposed if node not in obstacles]
        if fitting or room is not None:
            # Where it has its part, or could have it, the node lacks something of Kubernetes' own.
            return {node: proposed[node] for node in fitting if node in proposed}
        kept = [node for node, victims in proposed.items() if not victims.pdb_violations]
        if not (kept and await self._make_room(pod, asked, kept)):
            await self._make_room(pod, asked, list(proposed))
        return {}

    async def _make_room(self, pod: RawPod, asked: PodRequest, nodes: Sequence[str]) -> bool:
        """Have the pool take back what is in a pod's way on these nodes; False: it would take back nothing.

        By the sums of its nodes a scheduler does not see that it must: the parts may be of cards too full each, memory,
        or others' who have no pods. So whose they are, and how many, is the pool's to decide, and it evicts by itself.
        """
        labels = {**asked.request.labels, LEASE_OWNER: ROOM_OWNER}
        request = replace(asked.request, node_ids=tuple(nodes[:MAX_NODE_IDS_PER_REQUEST]), labels=labels)
        uid = pod.metadata.uid
        async with self.locks(uid):
            made = self._room_of(uid) or await self._granter.make_room(uid, request)
        if made is not None:
            self._tell(pod, "AliquotMakesRoom", "the pool takes back what is in its way")
        return made is not None

    def _room_of(self, uid: str) -> KubeLease | None:
        """The lease of a pod for which room is, or was, made."""
        lease = self._book.of_pod(uid)
        return lease if lease is not None and lease.owner == ROOM_OWNER else None

    def _room_changed(self, lease: KubeLease) -> None:
        if lease.owner == ROOM_OWNER and lease.holding:
            self.waker.freed()

    # ---------------------------------------------------------------------------------------------------- the rest

    def _blind(self) -> str:
        """Why nothing may be decided now; empty: it may."""
        if not self._book.synced.is_set():
            return "aliquot: the pool's leases are not known yet"
        if not self._pods.informer.trustworthy:
            return f"aliquot: the API server was not heard for {self._pods.informer.age_s():.0f} s"
        return ""

    def _tell(self, pod: RawPod, reason: str, text: str) -> None:
        meta = pod.metadata
        self._teller.tell(Regarding("Pod", meta.namespace, meta.name, meta.uid), reason, text, warning=True)


def _only(node: str, nodes: Sequence[str], what: str) -> FilterResult:
    """The one node that is left, where it is among those that suit otherwise."""
    if node in nodes:
        return FilterResult([node])
    return FilterResult([], dict.fromkeys(nodes, f"aliquot: {what} on {node}"))

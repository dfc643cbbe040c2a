"""Gangs without Kueue: one lease for all members, granted when all of them exist, all or nothing; then members bind.

Where a member goes is decided by the lease, so its filter leaves one node. A pod that replaces a member of a gang that
runs takes over that member's place.

No member is bound before all have their places: one that its scheduler can't place, for want of processors or by a
taint, is heard of by its absence only, and others that ran meanwhile would wait for it on GPUs.

Where others of lower priority are in the way, the pool makes room for the whole: its lease waits in the pool's queue
while theirs are taken back, and their pods deleted. A scheduler asks for room by its nodes' sums alone, and for one
member at a time, so a gang that has found no place has room made at once on the nodes that suit it otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aliquot.client import NeverFits, PoolError, Request
from aliquot.common.latest import Latest
from aliquot.common.limits import MAX_GANG_SIZE, MAX_NODE_IDS_PER_REQUEST
from aliquot.common.request import parse_request
from aliquot.kube.core import gangs
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.pods import Gang, flatten, may_preempt
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.extender.members import Members
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.granting import Granter, Locks
from aliquot.kube.holding.pods import PodIndex
from aliquot.kube.holding.requests import PodRequest

log = logging.getLogger(__name__)

_REFUSAL_KEPT_S: Final = 1.0
"""A refusal is told to all members that ask within this time, instead of asking for each of them."""
_GANGS_KEPT: Final = 1000
_TOGETHER_S: Final = 10.0
"""How long a bind waits for the other members' places. Well below the time in which a scheduler wants its answer."""
_WAITING_MAX: Final = 512
"""Binds that wait so, each on a connection of its own; others are tried again by their scheduler."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which member a pod is."""

    lease: KubeLease
    member: int
    node: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """Why a gang has no places."""

    why: str
    hopeless: bool = False
    """It would not fit the pool, were it empty."""


class GangPlaces:
    """See the module's docstring."""

    def __init__(self, book: LeaseBook, granter: Granter, pods: PodIndex) -> None:
        self.locks = Locks()
        self.together_s = _TOGETHER_S
        self._waiting = 0
        self._gathering: dict[str, asyncio.Event] = {}
        """Of leases whose members wait at their binds: set when all have their places, or the lease has ended."""
        self.on_reserved: list[Callable[[], None]] = []
        """Told that a gang has got its lease. Somebody else may have asked for it, and its pods been refused before."""
        self._holding: set[str] = set()
        """Leases that were told."""
        self._book = book
        self._granter = granter
        self._pods = pods
        self._refused: Latest[tuple[str, str], tuple[float, frozenset[str], NotNow]] = Latest(_GANGS_KEPT)
        """When, for which nodes, why; all forgotten when room became free."""
        self._suited: Latest[tuple[str, str], tuple[str, ...]] = Latest(_GANGS_KEPT)
        """The nodes that suited a gang when it was last asked about."""
        self._members = Members(book, pods)
        self._freed_at = 0.0
        book.on_freed.append(self._freed)
        book.on_lease.append(self._lease_changed)

    async def place(self, pod: RawPod, gang: Gang, asked: PodRequest, nodes: Sequence[str]) -> Place | NotNow:
        """The pod's place on one of these nodes, which are those that suit it otherwise. Raises PoolError."""
        async with self.locks(f"{gang.namespace}/{gang.name}"):
            lease = self._book.of_gang(gang.namespace, gang.name)
            if lease is not None and lease.waits:
                return NotNow(f"gang {gang.name} waits while room is made for it")
            if lease is None or not lease.holding:
                found = await self._reserve(pod, gang, asked, nodes)
                if isinstance(found, NotNow):
                    return found
                lease = found
            if lease.gpu and parse_request(lease.gpu) != parse_request(asked.request.gpu):
                return NotNow(
                    f"gang {gang.name} was reserved for {lease.gpu} each, and this pod asks for {asked.request.gpu}"
                )
            used = self._members.used(lease.lease_id)
            places = lease.members
            member = gangs.choose(places, pod.metadata.uid, used, set(nodes))
            if member is None:
                free = sorted({node for number, node in places.items() if number not in used})
                if not free:
                    return NotNow(f"gang {gang.name} has {lease.size} members, and all are bound")
                return NotNow(f"gang {gang.name} has its places on {', '.join(free[:4])}, which don't suit this pod")
            self._members.tell(lease.lease_id, member, pod.metadata.uid)
            if self._complete(lease):
                self._end_wait(lease.lease_id)
            return Place(lease, member, places[member])

    def placed(self, uid: str, gang: Gang) -> Place | None:
        """The place that a pod was told."""
        lease = self._book.of_gang(gang.namespace, gang.name)
        if lease is None or not lease.holding:
            return None
        member = self._members.told(lease.lease_id, uid)
        node = lease.node_of(member) if member is not None else ""
        return Place(lease, member, node) if member is not None and node else None

    async def together(self, lease: KubeLease) -> str:
        """Wait until every member has its place; returns why not, or empty."""
        if lease.owner != "gang" or self._complete(lease):
            return ""  # others' gangs may start with fewer pods
        if self._waiting < _WAITING_MAX:
            gathered = self._gathering.setdefault(lease.lease_id, asyncio.Event())
            self._waiting += 1
            try:
                async with asyncio.timeout(self.together_s):
                    await gathered.wait()
                    return ""
            except TimeoutError:
                log.debug("gang %s: a bind waited for %g s", lease.gang, self.together_s)
            finally:
                self._waiting -= 1
        placed = self._members.filled(lease.lease_id)
        return f"{placed} of {lease.size} members of gang {lease.gang} have a place; it starts when all have"

    def _complete(self, lease: KubeLease) -> bool:
        """Whether all may be bound. Where one is, all could be; who comes later replaces one that has ended."""
        return self._members.started(lease.lease_id) or self._members.filled(lease.lease_id) >= lease.size

    def _end_wait(self, lease_id: str) -> None:
        gathered = self._gathering.pop(lease_id, None)
        if gathered is not None:
            gathered.set()

    def _lease_changed(self, lease: KubeLease) -> None:
        if not lease.gang:
            return
        if not lease.holding:
            self._holding.discard(lease.lease_id)
            self._end_wait(lease.lease_id)
        elif lease.lease_id not in self._holding:
            self._holding.add(lease.lease_id)
            for tell in self.on_reserved:
                tell()

    def _freed(self) -> None:
        self._freed_at = asyncio.get_running_loop().time()
        self._refused.clear()

    async def make_room(self, pod: RawPod, gang: Gang, asked: PodRequest, nodes: Sequence[str]) -> bool:
        """Have the pool take back what is in the way of the whole gang; False: it would not, or need not.

        `nodes` are those on which the scheduler sees pods of lower priority; others have suited before.
        Raises PoolError.
        """
        async with self.locks(f"{gang.namespace}/{gang.name}"):
            if self._book.of_gang(gang.namespace, gang.name) is not None or self._incomplete(pod, gang):
                return False
            suited = dict.fromkeys((*nodes, *self._suited.get((gang.namespace, gang.name), ())))
            request = self._request(gang, asked, tuple(suited))
            return await self._granter.make_room(f"{gang.namespace}/{gang.name}", request) is not None

    def _incomplete(self, pod: RawPod, gang: Gang) -> str:
        """Why a gang can't be reserved from here; empty: it can."""
        if gang.reserved_by:
            return f"gang {gang.name} waits for its reservation by {gang.reserved_by}"
        if not 0 < gang.size <= MAX_GANG_SIZE:
            return f"gang {gang.name} needs the annotation aliquot.dev/gang-size: 1 to {MAX_GANG_SIZE}"
        members = self._pods.of_gang(gang.namespace, gang.name)
        if all(member.uid != pod.metadata.uid for member in members):
            members = [*members, flatten(pod)]
        missing = gangs.missing(gang.size, members)
        return f"gang {gang.name}: {gang.size - missing} of {gang.size} pods exist" if missing else ""

    def _request(self, gang: Gang, asked: PodRequest, nodes: tuple[str, ...]) -> Request:
        return replace(
            asked.request,
            gang_size=gang.size,
            # As many as may be named; with more, members that can't go where they are placed say so.
            node_ids=nodes if len(nodes) <= MAX_NODE_IDS_PER_REQUEST else (),
            name=f"{gang.namespace}/{gang.name}",
            labels=labels_of(self._book.cluster, gang.namespace, gang=gang.name, owner="gang"),
        )

    async def _reserve(self, pod: RawPod, gang: Gang, asked: PodRequest, nodes: Sequence[str]) -> KubeLease | NotNow:
        incomplete = self._incomplete(pod, gang)
        if incomplete:
            return NotNow(incomplete)
        key = (gang.namespace, gang.name)
        now = asyncio.get_running_loop().time()
        kept = self._refused.get(key)
        if kept is not None and now - kept[0] < _REFUSAL_KEPT_S and kept[1] == frozenset(nodes):
            return kept[2]
        self._suited[key] = tuple(nodes)
        request = self._request(gang, asked, tuple(nodes))
        try:
            lease = await self._granter.for_gang(gang.namespace, gang.name, request)
        except PoolError as error:
            hopeless = isinstance(error, NeverFits) and await self._never_fits(request)
            if not hopeless and may_preempt(pod):
                waiting = await self._granter.make_room(f"{gang.namespace}/{gang.name}", request)
                if waiting is not None:
                    return waiting if waiting.holding else NotNow(f"room is made for gang {gang.name}")
            few = isinstance(error, NeverFits) and not hopeless
            told = f"the nodes that suit it now ({len(nodes)}) are too few" if few else _told(error)
            refusal = NotNow(f"gang {gang.name}: {told}", hopeless)
            if self._freed_at > now:
                return refusal  # it is about a moment that is over
            self._refused[key] = (now, frozenset(nodes), refusal)
            return refusal
        self._refused.pop(key, None)
        return lease

    async def _never_fits(self, request: Request) -> bool:
        """Whether it would not, were the whole pool empty: the scheduler leaves out nodes that are full just now."""
        return not request.node_ids or (await self._book.pool.explain(replace(request, node_ids=()))).impossible


def _told(error: PoolError) -> str:
    if error.explanation is not None and error.explanation.summary:
        return error.explanation.summary
    return error.message

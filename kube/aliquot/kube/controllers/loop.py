"""The loop of all controllers whose objects own leases: claims, Workloads, elastic jobs, pods with GPUs elsewhere.

An object is looked at soon after it, or a lease of it, has changed; again after a pause where that failed; and all of
them from time to time, so that nothing depends on having heard of a change. The leases of one that is gone are given
back: at once where the API server has told, and by comparing where it went while nobody looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from aliquot.client import PoolError
from aliquot.kube.api.errors import KubeError, level_of
from aliquot.kube.api.informer import Informer
from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.core.work_queue import WorkQueue
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.parts import Parts

log = logging.getLogger(__name__)

K = TypeVar("K")

EVERY_S: Final = 10.0
_AGAIN_S: Final = 1.0
_GATHER_S: Final = 0.02


class _OnlyMeta(msgspec.Struct, gc=False):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)


@dataclass(frozen=True, slots=True)
class Owning(Generic[K]):
    """How leases and the objects that own them find one another."""

    kind: str
    """For people."""
    owner: str
    """What the leases' label says."""
    uid: Callable[[K], str]
    """Of an object."""
    uid_of_gang: Callable[[str], str]
    """The uid in a lease's gang; empty: it is not of this kind."""


class OwnerLoop(Generic[K]):
    """See the module's docstring.

    Args:
        parts: of this process.
        objects: those that own them; the loop runs the informer.
        owning: how the two find one another.
        look: bring one object to what it should be; False: it is not yet, look again. PoolError and KubeError are told
            in the log, and it is looked at again.
        end: end all that an object had that is gone, by its namespace, its uid, and why; False: try again. None: its
            leases are released.
        others: more informers that `look` reads, which run here, too.
        known: what else must be known before anything is decided.
        every_pass: done before all objects are looked at.
        every_s: how often that is.
        again_s: the first pause after a failure; then twice as long each time, up to `every_s`.
    """

    def __init__(
        self,
        parts: Parts,
        objects: Informer[Any, K],
        owning: Owning[K],
        look: Callable[[K], Awaitable[bool]],
        *,
        end: Callable[[str, str, str], Awaitable[bool]] | None = None,
        others: tuple[Informer[Any, Any], ...] = (),
        known: tuple[asyncio.Event, ...] = (),
        every_pass: Callable[[], Awaitable[None]] | None = None,
        every_s: float = EVERY_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self.passes = 0
        book = parts.book
        self._client, self._book = parts.client, book
        self._objects = objects
        self._owning = owning
        self._look = look
        self._end = end or self.release
        self._followed: tuple[Informer[Any, Any], ...] = (objects, *others)
        self._known = (book.synced, *(one.synced for one in self._followed), *known)
        self._every_pass = every_pass
        self._every_s = every_s
        self._granter = Granter(book)
        self._due = WorkQueue(again_s, every_s)
        self._gone = WorkQueue(again_s, every_s)
        self._namespaces: dict[str, str] = {}
        """Of objects that are gone, by uid."""
        self._keys: dict[str, str] = {}
        """Of objects that are there, by uid."""
        self._wake = asyncio.Event()
        objects.on_change.append(self._changed)
        book.on_lease.append(lambda lease: self.touch_gang(lease.gang))

    async def run(self) -> None:
        """Work until cancelled. Nothing is decided before both sides are known."""
        async with asyncio.TaskGroup() as group:
            for one in self._followed:
                group.create_task(one.run())
            for known in self._known:
                await known.wait()
            loop = asyncio.get_running_loop()
            while True:
                pass_at = loop.time() + self._every_s
                self.touch_all()
                if self._every_pass is not None:
                    await self._every_pass()
                await self._sweep()
                self.passes += 1
                while loop.time() < pass_at:
                    self._wake.clear()
                    if await self._one(loop.time()):
                        continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(min(pass_at, self._due.next_s(), self._gone.next_s())):
                            await self._wake.wait()
                            await asyncio.sleep(_GATHER_S)  # changes come in company

    def touch(self, key: str) -> None:
        """Have an object looked at, by `NAMESPACE/NAME`."""
        self._due.add(key)
        self._wake.set()

    def touch_all(self) -> None:
        """Have all looked at."""
        for key in self._objects.items():
            self._due.add(key)
        self._wake.set()

    def touch_gang(self, gang: str) -> None:
        """Have the object looked at whose gang this is."""
        key = self._keys.get(self._owning.uid_of_gang(gang))
        if key is not None:
            self.touch(key)

    def leases_of(self, uid: str) -> dict[str, KubeLease]:
        """Live ones of an object, by gang."""
        owning = self._owning
        return {
            lease.gang: lease
            for lease in self._book
            if lease.owner == owning.owner and owning.uid_of_gang(lease.gang) == uid
        }

    async def release(self, namespace: str, uid: str, why: str) -> bool:
        """Give back what an object has; False where the pool can't be reached."""
        leases = [lease for lease in self.leases_of(uid).values() if lease.state != "RELEASING"]
        return all([await self._granter.undo(lease, why) for lease in leases])

    async def _one(self, now_s: float) -> bool:
        """Work on what is due first; False where nothing is. Who is gone comes first: others wait for its room."""
        uid = self._gone.take(now_s)
        if uid is not None:
            why = f"its {self._owning.kind} was deleted"
            if await self._tried(self._gone, uid, self._end(self._namespaces[uid], uid, why)):
                self._namespaces.pop(uid, None)
            return True
        key = self._due.take(now_s)
        if key is None:
            return False
        found = self._objects.get(key)
        if found is None:
            self._due.done(key)
        else:
            await self._tried(self._due, key, self._look(found))
        return True

    async def _tried(self, queue: WorkQueue, key: str, work: Awaitable[bool]) -> bool:
        try:
            finished = await work
        except (PoolError, KubeError) as error:
            log.log(level_of(error), "%s %s: %s; tried again", self._owning.kind, key, error.message)
            finished = False
        if finished:
            queue.done(key)
        else:
            queue.again(key, asyncio.get_running_loop().time())
        return finished

    async def _sweep(self) -> None:
        """Leases whose object is gone. The API server is asked: our own list may be a moment old."""
        known = {self._owning.uid(one) for one in self._objects}
        for lease in self._book:
            uid = self._owning.uid_of_gang(lease.gang)
            if lease.owner != self._owning.owner or uid in known or lease.state == "RELEASING":
                continue
            try:
                if not await self._exists(lease, uid):
                    await self._end(lease.namespace, uid, f"its {self._owning.kind} is gone")
            except (PoolError, KubeError) as error:
                log.log(level_of(error), "lease %s could not be looked at: %s", lease.lease_id, error.message)

    async def _exists(self, lease: KubeLease, uid: str) -> bool:
        """By the lease's name, which is its object's."""
        namespace, _, name = (await self._book.pool.get(lease.lease_id)).name.partition("/")
        found = await self._client.find(self._objects.resource.path(namespace, name), _OnlyMeta)
        return found is not None and found.metadata.uid == uid

    def _changed(self, key: str, before: K | None, after: K | None) -> None:
        uid = self._owning.uid(after) if after is not None else ""
        if before is not None and (was := self._owning.uid(before)) != uid:
            self._keys.pop(was, None)
            self._namespaces[was] = key.partition("/")[0]
            self._gone.add(was)
        if uid:
            self._keys[uid] = key
        self.touch(key)

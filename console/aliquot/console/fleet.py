"""All devices, for any number of browsers by one stream from the coordinator.

Nobody sees more than their own token opens: each caller has a call of their own that lasts as long as they may watch
(`guard`), and costs nothing else. The shared stream goes by the token of one of those who watch; when that ends, by
another's. The coordinator's messages pass through as they come; nothing is unpacked here. Each viewer has its place in
what was told lately, and no queue: who falls behind that is told to ask for the whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from aliquot.client import AsyncPool, Unavailable
from aliquot.client.documents import of_error
from aliquot.client.fleet import FleetChange
from aliquot.common.clock import wall_ms
from aliquot.common.errors import AliquotError
from aliquot.common.fields import varint
from aliquot.common.latest import Latest
from aliquot.common.tasks import Tasks, beside
from aliquot.console.pools import Pools
from aliquot.console.sse import PING, PING_S, frame

log = logging.getLogger(__name__)

FRAMES_KEPT: Final = 320
BYTES_KEPT: Final = 12 << 20
"""More than the coordinator keeps, in base64: where a snapshot of its own is still good, what came after it is here."""
LINGER_S: Final = 5.0
"""A caller who left is likely to be back: a page asks for the whole, then for what changes."""
FIRST_S: Final = 15.0
"""How long the first picture may take."""
WOKEN_TOGETHER: Final = 4
"""So many viewers are told before others have their turn: some tenths of a millisecond."""
WAKE_EVERY_S: Final = 0.001
TURNS_MAX: Final = 200
"""In so many turns all of them are told, however many they are."""
_CAUGHT_UP_S: Final = 2.0
_GZIP_LEVEL: Final = 1
"""A tenth of the time for a few more percent."""
_PROBE_S: Final = 2.0
_PAUSE_S: Final = 0.2


@dataclass(eq=False, slots=True)
class _Caller:
    """Somebody who may watch, in any number of tabs."""

    token: str = field(repr=False)
    viewers: int = 0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    """Or refused."""
    refused: AliquotError | None = None
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Frame:
    number: int
    text: bytes


@dataclass(frozen=True)
class Snapshot:
    """All devices, as the coordinator told them."""

    id: str
    plain: bytes
    """Its messages, each behind its length, as protobuf's libraries write and read several of them."""

    @cached_property
    def packed(self) -> bytes:
        """By gzip."""
        return gzip.compress(self.plain, _GZIP_LEVEL, mtime=0)


class FleetRelay:
    """See the module's docstring. Everything runs on one event loop."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._callers: dict[str, _Caller] = {}
        self._layout = self._version = 0
        """How far the stream has come; 0: there is none."""
        self._snapshot: Snapshot | None = None
        self._snapping = asyncio.Lock()
        self._frames: deque[_Frame] = deque()
        self._bytes = 0
        self.last = 0
        """The number of the latest frame."""
        self._resumes: Latest[str, int] = Latest(FRAMES_KEPT)
        """Frame numbers by version, as far as frames are kept."""
        self._waiting: dict[asyncio.Future[bool], None] = {}
        """A viewer each, who has been told everything."""
        self._rung: deque[asyncio.Future[bool]] = deque()
        """Those for whom there is more, in the order in which they are woken."""
        self._tasks = Tasks()
        self._upstream: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self.unreachable_since_ms = 0

    @contextlib.asynccontextmanager
    async def viewing(self, token: str) -> AsyncIterator[Viewer]:
        """Somebody looks, as long as this lasts. Raises what the coordinator refuses with."""
        caller = self._callers.get(token)
        if caller is None or caller.refused is not None:
            caller = self._callers[token] = _Caller(token)
            caller.task = self._tasks.run("who watches", self._guard(caller))
        caller.viewers += 1
        try:
            await _in_time(caller.admitted)
            if caller.refused is not None:
                raise caller.refused
            if self._upstream is None:
                self._upstream = self._tasks.run("fleet", self._follow())
            yield Viewer(self, caller)
        finally:
            caller.viewers -= 1
            if not caller.viewers:
                asyncio.get_running_loop().call_later(LINGER_S, self._leave, caller)

    @property
    def id(self) -> str:
        """Names what has been told: the layout, and in it a version that counts up."""
        return _version_id(self._layout, self._version)

    async def first(self) -> None:
        """Wait until anything has been told. Raises Unavailable."""
        await _in_time(self._first)

    async def snapshot(self, token: str) -> Snapshot:
        """All devices at a version from which on everything is still kept; one that others had will do.

        Raises Unavailable, and what the coordinator refuses with.
        """
        await self.first()
        async with self._snapping:
            if (kept := self._snapshot) is not None and self._continues(kept.id):
                return kept
            async with self._pools.of(token) as pool, asyncio.timeout(FIRST_S):
                made = self._snapshot = await _whole(pool)
            # It may be ahead of the stream by an event: who goes on from it must find its place here.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CAUGHT_UP_S):
                    while not self._continues(made.id):
                        await self.rung(_CAUGHT_UP_S)
            return made

    def _continues(self, version: str) -> bool:
        place = self.place_of(version)
        return place is not None and self.frames_after(place) is not None

    async def close(self) -> None:
        """End everything."""
        await self._tasks.end()

    # -- who may watch

    async def _guard(self, caller: _Caller) -> None:
        try:
            async with (
                self._pools.of(caller.token) as pool,
                contextlib.aclosing(pool.watch_fleet(guard=True)) as signs,  # type: ignore[type-var]
            ):
                async for _ in signs:
                    caller.admitted.set()
        except AliquotError as error:
            caller.refused = error
        finally:
            self._forget_caller(caller)
            caller.admitted.set()
            self._ring()

    def _leave(self, caller: _Caller) -> None:
        if not caller.viewers and caller.task is not None:
            self._forget_caller(caller)
            caller.task.cancel()

    def _forget_caller(self, caller: _Caller) -> None:
        if self._callers.get(caller.token) is caller:
            del self._callers[caller.token]

    # -- the one stream

    async def _follow(self) -> None:
        """By the token of somebody who watches, as long as anybody does."""
        probing = asyncio.create_task(self._probe())
        try:
            while (caller := self._somebody()) is not None:
                try:
                    async with self._pools.of(caller.token) as pool:
                        await self._take_from(pool, caller)
                except AliquotError:  # it is not theirs any more, which their own call is about to say
                    await asyncio.sleep(_PAUSE_S)
                except Exception:
                    # Whatever it was, those who look must not be left with what was.
                    log.exception("the fleet can't be followed; it is asked for as a whole again")
                    self._layout = self._version = 0
                    await asyncio.sleep(_PROBE_S)
        finally:
            probing.cancel()
            self._upstream = None
            self._first.clear()
            self._layout = self._version = 0
            self._snapshot = None

    def _somebody(self) -> _Caller | None:
        admitted = (each for each in self._callers.values() if each.admitted.is_set() and each.refused is None)
        return next(admitted, None)

    async def _take_from(self, pool: AsyncPool, caller: _Caller) -> None:
        changes = pool.watch_fleet(layout=self._layout, version=self._version)
        leaving = caller.task
        assert leaving is not None
        async with (
            contextlib.aclosing(changes) as following,  # type: ignore[type-var]
            beside("changes", self._pass_on(following)) as taking,
        ):
            await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                taking.result()

    async def _pass_on(self, changes: AsyncIterator[FleetChange]) -> None:
        parts: list[FleetChange] = []
        async for change in changes:
            if change.resets:
                parts = [change]
            elif parts:
                parts.append(change)
            if not change.version:
                continue
            self._layout, self._version = change.layout, change.version
            if parts:
                self._snapshot = _snapshot_of(parts)
                parts = []
                self._forget()
                self._tell(frame("resync", self.id, {"version": self.id}))
            else:
                self._tell(frame("change", self.id, {"event": b64encode(change.event).decode()}))
            self._first.set()

    async def _probe(self) -> None:
        """Say when no coordinator answers, and since when: what is shown is as old as that."""
        async with self._pools.of("") as pool:
            heard_ms = wall_ms()
            while True:
                try:
                    async with asyncio.timeout(_PROBE_S):
                        await pool.access.describe_login()
                    heard_ms, since_ms = wall_ms(), 0
                except (AliquotError, TimeoutError):
                    since_ms = heard_ms
                if since_ms != self.unreachable_since_ms:
                    self.unreachable_since_ms = since_ms
                    self._tell(frame("pool", "", pool_document(since_ms)))
                await asyncio.sleep(_PROBE_S)

    # -- telling

    def _tell(self, text: bytes) -> None:
        self.last += 1
        self._frames.append(_Frame(self.last, text))
        self._resumes[self.id] = self.last
        self._bytes += len(text)
        while len(self._frames) > FRAMES_KEPT or (self._bytes > BYTES_KEPT and len(self._frames) > 1):
            self._bytes -= len(self._frames.popleft().text)
        self._ring()

    def _forget(self) -> None:
        """A snapshot came: nobody goes on from what was before."""
        self._frames.clear()
        self._resumes.clear()
        self._bytes = 0

    def _ring(self) -> None:
        begins = not self._rung
        self._rung.extend(self._waiting)
        self._waiting.clear()
        if begins and self._rung:
            self._wake()

    def _wake(self) -> None:
        """A few at a time: whoever asks for something else meanwhile does not wait until all have been told."""
        several = max(WOKEN_TOGETHER, len(self._rung) // TURNS_MAX)
        for _ in range(min(several, len(self._rung))):
            waiter = self._rung.popleft()
            if not waiter.done():
                waiter.set_result(True)
        if self._rung:
            asyncio.get_running_loop().call_later(WAKE_EVERY_S, self._wake)

    async def rung(self, timeout_s: float) -> bool:
        """Wait until there may be more to tell; false: not for so long."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = None
        late = loop.call_later(timeout_s, _late, waiter)
        try:
            return await waiter
        finally:
            late.cancel()
            self._waiting.pop(waiter, None)

    def place_of(self, version: str) -> int | None:
        """Where somebody goes on who has seen this version; None: nowhere."""
        if version == self.id:
            return self.last
        return self._resumes.get(version)

    def frames_after(self, number: int) -> list[bytes] | None:
        """What was told since; None: not all of it is kept."""
        oldest = self._frames[0].number if self._frames else self.last + 1
        if number + 1 < oldest:
            return None
        return [each.text for each in self._frames if each.number > number]


def _late(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


async def _in_time(event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(FIRST_S):
            await event.wait()
    except TimeoutError:
        raise Unavailable("the coordinator has not shown the fleet in time", retry_after_s=1.0) from None


class Viewer:
    """One who looks."""

    def __init__(self, relay: FleetRelay, caller: _Caller) -> None:
        self._relay = relay
        self._caller = caller

    @property
    def refused(self) -> AliquotError | None:
        """Why it may look no more; None: it may."""
        return self._caller.refused

    async def frames(self, after: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events from this version on, until the viewer's right ends; comments when nothing happens."""
        relay = self._relay
        place = relay.place_of(after) if after else relay.last
        yield frame("open", relay.id, {"version": relay.id})
        if relay.unreachable_since_ms:
            yield frame("pool", "", pool_document(relay.unreachable_since_ms))
        while self.refused is None:
            told = relay.frames_after(place) if place is not None else None
            place = relay.last
            if told is None:
                yield frame("resync", relay.id, {"version": relay.id})
            elif told:
                yield b"".join(told)
            elif not await relay.rung(PING_S):
                yield PING
        yield frame("closed", "", of_error(self.refused))


async def _whole(pool: AsyncPool) -> Snapshot:
    """A snapshot alone, by a call of its own: the coordinator has one ready as long as it keeps what came after."""
    parts: list[FleetChange] = []
    async with contextlib.aclosing(pool.watch_fleet()) as changes:  # type: ignore[type-var]
        async for change in changes:
            if change.resets:
                parts.clear()
            parts.append(change)
            if change.version:
                break
    return _snapshot_of(parts)


def _snapshot_of(parts: list[FleetChange]) -> Snapshot:
    plain = b"".join(varint(len(each.event)) + each.event for each in parts)
    return Snapshot(_version_id(parts[-1].layout, parts[-1].version), plain)


def _version_id(layout: int, version: int) -> str:
    return f"{layout}.{version}"


def pool_document(since_ms: int) -> dict[str, object]:
    """Whether a coordinator answers; where not, of when the last news is."""
    return {"reachable": not since_ms, "since_ms": since_ms or None}

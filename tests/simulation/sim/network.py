"""The simulated network: hosts, links between them that can be slow or cut in one direction, connections and calls.

A stream is what TCP and HTTP/2 make of a network: in order, without gaps, until it breaks; what is lost, duplicated or
reordered below it shows as delay or as a broken stream, with what was under way lost. Cut links keep what is sent (TCP
sends it again) until one side gives up, which the other side may never hear: a half-open stream. Single calls are what
launchers make: a request or its answer may be lost, come late, come twice, or overtake another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

import grpc
import grpc.aio

from tests.identity import ADMIN_TOKEN
from tests.simulation.sim.calls import Call, CallContext, CallFailed, Metadata, Status, shown
from tests.simulation.sim.loop import US_PER_S, Process, SimLoop

WINDOW_MESSAGES = 64
"""So many messages may be under way in one direction of a stream before its writer has to wait."""
CLIENT_GIVES_UP_US = 30 * US_PER_S
SERVER_GIVES_UP_US = 75 * US_PER_S
_SNAPSHOT = 0x12
"""The first byte of an agent's snapshot."""
Deliver = Callable[["Connection", bool, bytes], None]


class Server(Protocol):
    """What listens at an address."""

    process: Process

    def accept(self, connection: Connection) -> Coroutine[Any, Any, None]:
        """The handler of a new stream."""

    def dispatch(self, method: str, request: bytes, context: CallContext) -> Coroutine[Any, Any, bytes]:
        """The handler of a single call."""


class Network:
    """See the module's docstring."""

    def __init__(self, loop: SimLoop, random: Random, world: Process) -> None:
        self.loop = loop
        self.random = random
        self.world = world
        self.servers: dict[str, Server] = {}
        self.connections: dict[int, Connection] = {}
        self.cut: dict[tuple[str, str], int] = {}
        """(from, to) -> how many faults cut it now. `*` stands for everybody."""
        self.slow_us: dict[str, int] = {}
        """Host -> what everything from and to it takes longer."""
        self.lossy_permille = 0
        self.twice_permille = 0
        self.on_deliver: Deliver = lambda connection, up, data: None
        self.on_client_sends: Callable[[Connection, bytes], None] = lambda connection, data: None
        self.on_server_sends: Callable[[Connection, bytes], None] = lambda connection, data: None
        self.on_call: Callable[..., None] = lambda number, process, method, request, *, begins: None
        self.on_enters: Callable[[int, Call], None] = lambda number, call: None
        self.on_leaves: Callable[[int, Call, bytes | Status | None], None] = lambda number, call, result: None
        """A call has begun at its server, and is over there; None: without an answer."""
        self.on_refusal: Callable[[Connection, Status], None] = lambda connection, status: None
        self.on_answer: Callable[[str, str, bytes, bytes | Status], None] = lambda address, method, request, result: (
            None
        )
        self.spoken: dict[tuple[str, bool], deque[tuple[int, bytes]]] = {}
        """(client, up) -> the latest messages of it: (connection, data). For faults that replay them."""
        self.snapshots: dict[str, tuple[int, bytes]] = {}
        """client -> its latest snapshot, likewise."""
        self.events = 0
        self.calls = 0
        self._numbers = 0

    # -- links

    def delay_us(self, source: str, target: str) -> int:
        """How long something under way now takes."""
        delay = 150 + int(self.random.random() ** 4 * 4_000)
        return delay + self.slow_us.get(source, 0) + self.slow_us.get(target, 0)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets through in this direction."""
        cut = self.cut
        return bool(cut) and ((source, target) in cut or (source, "*") in cut or ("*", target) in cut)

    def block(self, source: str, target: str) -> None:
        """Cut one direction."""
        self.cut[source, target] = self.cut.get((source, target), 0) + 1
        for connection in list(self.connections.values()):
            connection.link_changed()

    def unblock(self, source: str, target: str) -> None:
        """Mend one direction."""
        left = self.cut.get((source, target), 0) - 1
        if left > 0:
            self.cut[source, target] = left
        else:
            self.cut.pop((source, target), None)
        for connection in list(self.connections.values()):
            connection.link_changed()

    # -- streams

    def connect(
        self, client: str, address: str, path: str, process: Process, token: str = ADMIN_TOKEN
    ) -> Connection | None:
        """A stream to who listens there; None where nobody does, or nothing gets through."""
        server = self.servers.get(address)
        if server is None or not server.process.alive or self.is_cut(client, address) or self.is_cut(address, client):
            return None
        self._numbers += 1
        connection = Connection(self, self._numbers, client, address, process, server)
        connection.note, connection.token = path, token
        self.connections[connection.number] = connection
        self.loop.call_in(self.world, self.delay_us(client, address), connection.begin)
        return connection

    def later(self, delay_us: int, callback: Callable[..., object], *args: Any) -> None:
        """Something happens out there."""
        self.loop.call_in(self.world, delay_us, callback, *args)

    def replay(self, random: Random, *, up: bool, client: str = "") -> bool:
        """Somebody on the way repeats on a present stream (of this client) what an earlier one said."""
        present = [c for c in self.connections.values() if c.client_open and c.server_open and client in ("", c.client)]
        random.shuffle(present)
        for connection in present:
            old = [data for number, data in self.spoken.get((connection.client, up), ()) if number != connection.number]
            if old:
                direction = connection.up if up else connection.down
                direction.arrived.extend(old[-random.randint(1, 6) :])
                direction.wake()
                return True
        return False

    def replay_snapshot(self, client: str) -> None:
        """As `replay`, with the snapshot of an earlier stream, before the client has sent one on this."""
        number, data = self.snapshots.get(client, (0, b""))
        for connection in self.connections.values():
            there = connection.client == client and connection.client_open and connection.server_open
            if number and there and connection.number > number:
                connection.up.arrived.append(data)
                connection.up.wake()

    def reset_some(self, host: str) -> int:
        """Break every stream of a host at once, losing what is under way."""
        hit = [c for c in self.connections.values() if host in (c.client, c.address)]
        for connection in hit:
            connection.client_breaks("connection reset")
            connection.server_breaks()
        return len(hit)

    # -- single calls

    async def call(
        self, client: str, address: str, method: str, request: bytes, timeout_s: float, token: str = ADMIN_TOKEN
    ) -> bytes:
        """One call. Raises CallFailed."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call = Call(
            self,
            client=client,
            address=address,
            method=method,
            request=request,
            token=token,
            timeout_s=timeout_s,
            future=future,
        )
        call.send()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            call.give_up()
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None


class Direction:
    """One way of a stream: in order, nothing missing, as long as the stream lives."""

    __slots__ = ("arrived", "last_us", "on_the_way", "owner", "reader", "source", "target", "up", "writer")

    def __init__(self, owner: Connection, source: str, target: str, *, up: bool) -> None:
        self.owner = owner
        self.source, self.target = source, target
        self.up = up
        self.on_the_way: deque[Any] = deque()
        self.arrived: deque[Any] = deque()
        self.last_us = 0
        self.reader: asyncio.Future[None] | None = None
        self.writer: asyncio.Future[None] | None = None

    def send(self, item: Any) -> None:
        network = self.owner.network
        if type(item) is bytes and len(item) > 16:  # heartbeats say nothing worth repeating
            key = (self.owner.client, self.up)
            network.spoken.setdefault(key, deque(maxlen=12)).append((self.owner.number, item))
            if self.up and item[0] == _SNAPSHOT:
                network.snapshots[self.source] = (self.owner.number, item)
        self.on_the_way.append(item)
        if not network.is_cut(self.source, self.target):
            now_us = network.loop.now_us
            self.last_us = max(self.last_us, now_us + network.delay_us(self.source, self.target))
            network.later(self.last_us - now_us, self.deliver)

    def deliver(self) -> None:
        network = self.owner.network
        if not self.on_the_way or network.is_cut(self.source, self.target):
            return
        item = self.on_the_way.popleft()
        network.events += 1
        if self.up and self.owner.server_begun and not self.owner.server_open and not self.owner.server_ended:
            network.later(network.delay_us(self.target, self.source), self.owner.client_breaks, "connection reset")
        self.arrived.append(item)
        if isinstance(item, Status):
            self.owner.told_end = True
            self.owner.up.wake()
        elif type(item) is bytes:
            if network.twice_permille and network.random.randrange(1000) < network.twice_permille and not self.up:
                self.arrived.append(item)
            network.on_deliver(self.owner, self.up, item)
        self.wake()

    def mended(self) -> None:
        """What waited behind the cut goes on."""
        network = self.owner.network
        for _ in range(len(self.on_the_way)):
            now_us = network.loop.now_us
            self.last_us = max(self.last_us, now_us + network.delay_us(self.source, self.target))
            network.later(self.last_us - now_us, self.deliver)

    def wake(self) -> None:
        for waiter in (self.reader, self.writer):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def room(self) -> None:
        while len(self.on_the_way) + len(self.arrived) >= WINDOW_MESSAGES and self.owner.open_for(self):
            self.writer = asyncio.get_running_loop().create_future()
            await self.writer

    async def more(self) -> None:
        self.reader = asyncio.get_running_loop().create_future()
        await self.reader

    def taken(self) -> Any:
        item = self.arrived.popleft()
        if self.writer is not None and not self.writer.done():
            self.writer.set_result(None)
        return item


_CANCEL = object()


class Connection:
    """One stream between a client and a server, with an end for each."""

    def __init__(
        self, network: Network, number: int, client: str, address: str, process: Process, server: Server
    ) -> None:
        self.network = network
        self.number = number
        self.client, self.address = client, address
        self.server = server
        self.client_process = process
        self.up = Direction(self, client, address, up=True)
        self.down = Direction(self, address, client, up=False)
        self.client_open = True
        self.server_open = False
        self.server_begun = False
        self.server_ended = False
        """It has said how the stream ends."""
        self.told_end = False
        """And the client's transport has heard it."""
        self.status: Status | None = None
        self.server_task: asyncio.Task[None] | None = None
        self.cut_since_us = -1
        self.note = ""
        """The method that was called."""
        self.token = ""
        """With it."""
        self.begun_us = 0
        """When it reached the server."""
        process.on_exit.append(self._client_died)
        server.process.on_exit.append(self._server_died)

    def begin(self) -> None:
        """The stream has reached the server."""
        if not self.server.process.alive or self.network.servers.get(self.address) is not self.server:
            self.client_breaks("connection refused")
            return
        self.server_open = self.server_begun = True
        self.begun_us = self.network.loop.now_us
        self.server_task = self.network.loop.start(self.server.process, self._serve(), f"stream of {self.client}")

    async def _serve(self) -> None:
        try:
            await self.server.accept(self)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            return
        finally:
            if self.server_open:
                self.server_open, self.server_ended = False, True
                self.down.send(self.status or Status(grpc.StatusCode.OK, ""))

    def open_for(self, direction: Direction) -> bool:
        return self.client_open and not self.told_end if direction is self.up else self.server_open

    # -- the client's end

    async def client_write(self, data: bytes) -> None:
        """Send. Raises AioRpcError when the stream is over."""
        await self.up.room()
        if not self.client_open:
            raise self._client_error()
        if self.told_end:
            raise asyncio.InvalidStateError("the call has ended")  # as grpc.aio does once the status has come
        self.network.on_client_sends(self, data)
        self.up.send(data)

    async def client_read(self) -> Any:
        """The next message, or EOF after a good end. Raises AioRpcError after a bad one."""
        while True:
            if self.down.arrived:
                item = self.down.taken()
                if isinstance(item, Status):
                    self._client_ends(item)
                    continue
                return item
            if not self.client_open:
                if self.status is not None and self.status.code is grpc.StatusCode.OK:
                    return grpc.aio.EOF
                raise self._client_error()
            await self.down.more()

    def client_cancel(self) -> None:
        """The client is done with it."""
        if self.client_open:
            self._client_ends(Status(grpc.StatusCode.CANCELLED, "cancelled by the client"))
            self.up.send(_CANCEL)
            self.network.later(SERVER_GIVES_UP_US, self.server_breaks)
            self._cancel_arrives()

    def _cancel_arrives(self) -> None:
        """The end follows what is under way; the server's handler is cancelled when it comes."""
        network = self.network
        if not network.is_cut(self.client, self.address):
            network.later(max(1, self.up.last_us - network.loop.now_us + 1), self.server_breaks)

    def client_breaks(self, why: str, *, lost: bool = True) -> None:
        """The client finds its stream broken. What it sent may still arrive (not `lost`), on a stream it has left."""
        if self.client_open:
            self._client_ends(Status(grpc.StatusCode.UNAVAILABLE, why))
            if lost:
                self.up.on_the_way.clear()

    def _client_ends(self, status: Status) -> None:
        self.client_open = False
        self.status = status
        self.down.wake()
        self.up.wake()
        self._forget()

    def _client_error(self) -> grpc.aio.AioRpcError:
        status = self.status or Status(grpc.StatusCode.UNKNOWN, "no status")
        metadata = grpc.aio.Metadata(*((key, value) for key, value in status.metadata))
        return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, details=status.details)

    def _client_died(self) -> None:
        if self.client_open:
            self._client_ends(Status(grpc.StatusCode.CANCELLED, "the process died"))
            self._cancel_arrives()

    # -- the server's end: what gRPC calls its context

    def peer(self) -> str:
        """Where the stream comes from."""
        return self.client

    def invocation_metadata(self) -> Metadata:
        """What came with its beginning."""
        return shown(self.token)

    async def read(self) -> Any:
        """The next message, or EOF."""
        while True:
            if self.up.arrived:
                item = self.up.taken()
                return grpc.aio.EOF if item is _CANCEL else item
            if not self.server_open:
                return grpc.aio.EOF
            await self.up.more()

    async def write(self, data: bytes) -> None:
        """Send. Raises when the stream is over."""
        await self.down.room()
        if not self.server_open:
            raise asyncio.InvalidStateError("the stream has ended")
        self.network.on_server_sends(self, data)
        self.down.send(data)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the stream with an error."""
        if not self.server_open:
            raise grpc.aio.UsageError("abort after the end")
        self.server_open, self.server_ended = False, True
        status = Status(code, details, trailing_metadata)
        self.network.on_refusal(self, status)
        self.down.send(status)
        self.up.wake()
        raise grpc.aio.AbortError

    def time_remaining(self) -> float | None:
        """Streams have no deadline."""
        return None

    def server_breaks(self) -> None:
        """The server finds its stream broken: gRPC cancels the handler."""
        if self.server_open:
            self.server_open = False
            self.down.on_the_way.clear()
            self.up.wake()
            self.down.wake()
            if self.server_task is not None and self.server.process.alive:
                self.server_task.cancel()
        self._forget()

    def _server_died(self) -> None:
        if self.server_begun and not self.network.is_cut(self.address, self.client):
            self.network.later(self.network.delay_us(self.address, self.client), self.client_breaks, "server died")
        self.server_open = False

    def link_changed(self) -> None:
        """A link was cut or mended."""
        network = self.network
        down = network.is_cut(self.address, self.client)
        up = network.is_cut(self.client, self.address)
        if up or down:
            if self.cut_since_us < 0:
                self.cut_since_us = since = network.loop.now_us
                network.later(CLIENT_GIVES_UP_US, self._still_cut, since, True)
                network.later(SERVER_GIVES_UP_US, self._still_cut, since, False)
        elif self.cut_since_us >= 0:
            self.cut_since_us = -1
            self.up.mended()
            self.down.mended()
            if self.client_open and self.server_begun and not self.server.process.alive:
                network.later(network.delay_us(self.address, self.client), self.client_breaks, "server died")
            if not self.client_open and self.server_open:
                self._cancel_arrives()

    def _still_cut(self, since_us: int, client: bool) -> None:
        if self.cut_since_us == since_us:
            if client:
                self.client_breaks("keepalive timed out", lost=False)
            else:
                self.server_breaks()

    def _forget(self) -> None:
        if not self.client_open and not self.server_open:
            self.network.connections.pop(self.number, None)

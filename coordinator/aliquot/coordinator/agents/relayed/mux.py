"""Many streams on one: the same on the relay's side and on the coordinator's.

What is to be sent gathers in batches, because a message costs a Python server the same whatever is in it. Each stream
has a window of its own: who has used it up waits for credit, which comes as the other side consumes, so that one that
is slow to read holds up nobody else, and what waits here for it is bounded. Nothing of this looks into payloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import grpc

from aliquot.common.limits import KIB, MAX_MESSAGE_BYTES, MIB
from aliquot.coordinator.agents.relayed.ending import Ending, overloaded
from aliquot.coordinator.errors import ProtocolVersion
from aliquot.v1 import relay_pb2

log = logging.getLogger(__name__)

PROTOCOL = 1
WINDOW_BYTES = 256 * KIB
ENVELOPE_COST_BYTES = 64
"""What a payload counts beside its length: small messages take room too."""
BATCH_BYTES_MAX = MIB
BATCH_ENVELOPES_MAX = 500
OUTBOX_BYTES_MAX = 4 * MIB
"""What waits to be written before those who want to say more must wait."""
BUFFERED_BYTES_MAX = 256 * MIB
"""What may wait for all readers together."""
PAYLOAD_BYTES_MAX = 4 * MAX_MESSAGE_BYTES - 64 * KIB
"""Of what a coordinator says; a batch has room for it."""
AGENT_PAYLOAD_BYTES_MAX = MAX_MESSAGE_BYTES - 64 * KIB
_RETRY_MS = 2_000
OVERRUN = overloaded("more was sent on this stream than the other side had given room", _RETRY_MS)
CROWDED = overloaded("too much waits for those who read slowly, most of it for this one", _RETRY_MS)


class StreamOver(Exception):
    """Nothing can be sent any more."""


class Stream:
    """One of the streams within. Reading and sending are for one task each."""

    __slots__ = ("_consumed", "_credit", "_credited", "_inbox", "_mux", "_room", "_waiter", "ended", "number", "queued")

    def __init__(self, mux: Mux, number: int, credit: int) -> None:
        self._mux = mux
        self.number = number
        self.ended: Ending | None = None
        self.queued = 0
        """Bytes that wait to be read."""
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._credit = credit
        self._credited: asyncio.Future[None] | None = None
        self._room = mux.window_bytes
        self._consumed = 0

    async def read(self) -> bytes | None:
        """The next payload; None once the stream has ended and all that came before is read."""
        while not self._inbox:
            if self.ended is not None:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        payload = self._inbox.popleft()
        self._consume(len(payload) + ENVELOPE_COST_BYTES)
        return payload

    async def send(self, payload: bytes, *, urgent: bool = True) -> None:
        """Send when the other side has room. What is not urgent may wait for company. Raises StreamOver."""
        while self.ended is None and (self._credit <= 0 or not self._mux.has_room):
            if self._credit > 0:
                await self._mux.wait_for_room()
                continue
            self._credited = asyncio.get_running_loop().create_future()
            try:
                await self._credited
            finally:
                self._credited = None
        if self.ended is not None:
            raise StreamOver
        self._credit -= len(payload) + ENVELOPE_COST_BYTES
        self._mux.put(self.number, payload, urgent=urgent)

    def dismiss(self, ending: Ending) -> None:
        """It is over: tell the other side, once. What came before can still be read."""
        if self.ended is None:
            self._mux.put_ended(self.number, ending)
            self.over(ending)

    def end(self, ending: Ending) -> None:
        """It is over, and nobody reads any more either."""
        self.dismiss(ending)
        self._mux.buffered -= self.queued
        self.queued = 0
        self._inbox.clear()

    # -- for the mux

    def feed(self, payload: bytes) -> bool:
        """Take what came; False when there was no room left for it."""
        if self._room <= 0:
            return False
        self.hear(payload)
        return True

    def hear(self, payload: bytes) -> None:
        """Have this read after all that came so far."""
        cost = len(payload) + ENVELOPE_COST_BYTES
        self._room -= cost
        self.queued += cost
        self._mux.buffered += cost
        self._inbox.append(payload)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def credit(self, more: int) -> None:
        """The other side has room for more."""
        self._credit += more
        if self._credit > 0 and self._credited is not None and not self._credited.done():
            self._credited.set_result(None)

    def over(self, ending: Ending) -> None:
        """Nothing more comes or goes."""
        if self.ended is not None:
            return
        self.ended = ending
        self._mux.forget(self)
        for waiter in (self._waiter, self._credited):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _consume(self, cost: int) -> None:
        self.queued -= cost
        self._mux.buffered -= cost
        self._consumed += cost
        if self._consumed * 2 >= self._mux.window_bytes and self.ended is None:
            self._room += self._consumed
            self._mux.put_credit(self.number, self._consumed)
            self._consumed = 0


class Mux:
    """One side of a carrying stream. `write` sends one message of it; `opened` is told of streams that the other side
    begins, and is None on the side that begins them.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        *,
        opened: Callable[[Stream, relay_pb2.StreamOpened], None] | None = None,
        linger_ms: int = 0,
        window_bytes: int = WINDOW_BYTES,
        buffered_bytes_max: int = BUFFERED_BYTES_MAX,
    ) -> None:
        self._write = write
        self._opened = opened
        self._linger_s = linger_ms / 1000
        self.window_bytes = window_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self.streams: dict[int, Stream] = {}
        self.buffered = 0
        """Bytes that wait to be read, on all streams."""
        self.ended: Ending | None = None
        self.batches_sent = self.envelopes_sent = self.bytes_sent = 0
        self.batches_received = self.envelopes_received = self.bytes_received = 0
        self.overruns = 0
        """Streams that were ended because their readers are too slow."""
        self._their_window_bytes = 0
        self._last_number = 0
        self._sealed: deque[tuple[relay_pb2.RelayBatch, int]] = deque()
        """With what each counts."""
        self._filling = relay_pb2.RelayBatch()
        self._filling_bytes = 0
        self._outbox_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._writing: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None

    # -- streams

    def greet(self, version: str) -> None:
        """Say which protocol this side speaks, and how much it takes."""
        greeting = self._filling.greeting
        greeting.protocol_min = greeting.protocol_max = PROTOCOL
        greeting.version, greeting.window_bytes = version, self.window_bytes
        self._start_writing()

    def open(self, who: relay_pb2.StreamOpened) -> Stream:
        """Begin a stream. Raises StreamOver where the carrying stream is over."""
        if self.ended is not None:
            raise StreamOver
        self._last_number += 1
        stream = self.streams[self._last_number] = Stream(self, self._last_number, self._their_window_bytes)
        self._add(stream.number, who.ByteSize()).opened.CopyFrom(who)
        self._start_writing()
        return stream

    def receive(self, raw: bytes) -> None:
        """Take one message. Raises DecodeError, ProtocolVersion."""
        batch = relay_pb2.RelayBatch.FromString(raw)
        self.batches_received += 1
        self.bytes_received += len(raw)
        self.envelopes_received += len(batch.envelopes)
        if batch.HasField("greeting"):
            self._greeted(batch.greeting)
        for envelope in batch.envelopes:
            self._take(envelope)

    def _greeted(self, greeting: relay_pb2.RelayGreeting) -> None:
        if not greeting.protocol_min <= PROTOCOL <= greeting.protocol_max:
            raise ProtocolVersion(
                f"the other side speaks relays' protocols {greeting.protocol_min} to {greeting.protocol_max}, "
                f"this one {PROTOCOL}",
                hint="upgrade the older of the two",
            )
        self._their_window_bytes = greeting.window_bytes

    def _take(self, envelope: relay_pb2.Envelope) -> None:
        stream = self.streams.get(envelope.stream)
        kind = envelope.WhichOneof("what")
        if stream is None:
            # Not known any more: what was on its way when it ended.
            if kind == "opened" and self._opened is not None and envelope.stream > self._last_number:
                self._last_number = envelope.stream
                stream = self.streams[envelope.stream] = Stream(self, envelope.stream, self._their_window_bytes)
                self._opened(stream, envelope.opened)
        elif kind == "payload":
            if not stream.feed(envelope.payload):
                self.overruns += 1
                stream.end(OVERRUN)
            elif self.buffered > self._buffered_bytes_max:
                self.overruns += 1
                max(self.streams.values(), key=lambda each: each.queued).end(CROWDED)
        elif kind == "credit_bytes":
            stream.credit(envelope.credit_bytes)
        elif kind == "ended":
            stream.over(Ending.read(envelope.ended))

    def forget(self, stream: Stream) -> None:
        """It is over."""
        self.streams.pop(stream.number, None)

    # -- sending

    @property
    def has_room(self) -> bool:
        """Whether more may be put in without waiting."""
        return self._outbox_bytes < OUTBOX_BYTES_MAX

    async def wait_for_room(self) -> None:
        """Until some of what waits is written, or nothing will be any more."""
        self._room.clear()
        await self._room.wait()

    def put(self, number: int, payload: bytes, *, urgent: bool) -> None:
        """Queue a payload."""
        self._add(number, len(payload)).payload = payload
        if urgent or not self._linger_s:
            self._start_writing()
        elif self._linger is None and self._writing is None:
            self._linger = asyncio.get_running_loop().call_later(self._linger_s, self._start_writing)

    def put_credit(self, number: int, more: int) -> None:
        """Queue credit."""
        if self.ended is None:
            self._add(number, 0).credit_bytes = more
            self._start_writing()

    def put_ended(self, number: int, ending: Ending) -> None:
        """Queue the end of a stream."""
        if self.ended is None:
            ending.write(self._add(number, len(ending.message)).ended)
            self._start_writing()

    async def flush(self) -> None:
        """Until everything queued is written, or can't be."""
        while self.ended is None and self._outbox_bytes:
            self._start_writing()
            if self._writing is not None:
                await asyncio.wait([self._writing])

    def _add(self, number: int, length: int) -> relay_pb2.Envelope:
        cost = length + ENVELOPE_COST_BYTES
        full = len(self._filling.envelopes) >= BATCH_ENVELOPES_MAX or self._filling_bytes + cost > BATCH_BYTES_MAX
        if full and self._filling.envelopes:
            self._seal()
        self._filling_bytes += cost
        self._outbox_bytes += cost
        return self._filling.envelopes.add(stream=number)

    def _seal(self) -> None:
        self._sealed.append((self._filling, self._filling_bytes))
        self._filling, self._filling_bytes = relay_pb2.RelayBatch(), 0

    def _start_writing(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._writing is None and self.ended is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_out())

    async def _write_out(self) -> None:
        try:
            while self.ended is None:
                if not self._sealed:
                    if not self._filling_bytes and not self._filling.HasField("greeting"):
                        break
                    self._seal()
                batch, cost = self._sealed.popleft()
                raw = batch.SerializeToString()
                self.batches_sent += 1
                self.envelopes_sent += len(batch.envelopes)
                self.bytes_sent += len(raw)
                await self._write(raw)
                self._outbox_bytes -= cost
                if self.has_room:
                    self._room.set()
        except Exception as error:  # noqa: BLE001 - its reader ends too, which is where it is handled
            log.debug("a carrying stream can't be written: %r", error)
            self.close(Ending(grpc.StatusCode.UNAVAILABLE, "the carrying stream is broken"))
        finally:
            self._writing = None

    # -- the end

    def close(self, ending: Ending) -> None:
        """The carrying stream is over, and with it all streams within."""
        if self.ended is not None:
            return
        self.ended = ending
        self._room.set()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        for stream in list(self.streams.values()):
            stream.over(ending)

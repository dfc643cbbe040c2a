"""Many streams on one: order, room, credit, and how they end, between two sides that are joined by a queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import AliquotError
from aliquot.coordinator.agents.relayed import mux as mux_module
from aliquot.coordinator.agents.relayed.ending import Ending
from aliquot.coordinator.agents.relayed.mux import Mux, Stream, StreamOver
from aliquot.v1 import relay_pb2

WINDOW = 4_096
BAD = Ending(grpc.StatusCode.ABORTED, "told", (("leader", "a:1"), ("details-bin", b"\x00\xff")))


class Joined:
    """Two sides. What the upper one is sent waits until it is let through."""

    def __init__(self, *, buffered_bytes_max: int = 1 << 20, their_window: int = WINDOW) -> None:
        self.arrived: list[Stream] = []
        self.messages: list[bytes] = []
        self.lower = Mux(self._up, window_bytes=WINDOW)
        self.upper = Mux(
            self._down,
            opened=lambda stream, _: self.arrived.append(stream),
            window_bytes=their_window,
            buffered_bytes_max=buffered_bytes_max,
        )

    async def _up(self, raw: bytes) -> None:
        self.messages.append(raw)
        self.upper.receive(raw)

    async def _down(self, raw: bytes) -> None:
        self.lower.receive(raw)

    async def greeted(self) -> Joined:
        self.upper.greet("test")
        self.lower.greet("test")
        await self.settled()
        return self

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def pair(self) -> tuple[Stream, Stream]:
        lower = self.lower.open(relay_pb2.StreamOpened(peer="p"))
        await self.settled()
        return lower, self.arrived[-1]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3 * WINDOW), st.booleans()), max_size=40))
def test_each_stream_keeps_its_order_whatever_the_others_do(said: list[tuple[int, bytes, bool]]) -> None:
    async def run() -> None:
        joined = await Joined().greeted()
        pairs = [await joined.pair() for _ in range(4)]
        heard: dict[int, list[bytes]] = defaultdict(list)

        async def listen(number: int, stream: Stream) -> None:
            while (payload := await stream.read()) is not None:
                heard[number].append(payload)

        async def speak(number: int, stream: Stream) -> None:
            for who, payload, urgent in said:
                if who == number:
                    await stream.send(payload, urgent=urgent)
            stream.dismiss(Ending())

        listening = [listen(number, upper) for number, (_, upper) in enumerate(pairs)]
        speaking = [speak(number, lower) for number, (lower, _) in enumerate(pairs)]
        async with asyncio.timeout(30):
            await asyncio.gather(*listening, *speaking)
        for number in range(4):
            assert heard[number] == [payload for who, payload, _ in said if who == number]
        assert joined.upper.buffered == 0
        assert not joined.upper.streams
        assert not joined.lower.streams

    asyncio.run(run())


async def test_who_reads_nothing_is_sent_no_more_than_its_window_and_holds_up_nobody() -> None:
    joined = await Joined().greeted()
    slow, unread = await joined.pair()
    quick, read = await joined.pair()

    async def flood() -> None:
        while True:
            await slow.send(b"x" * 1000)

    flooding = asyncio.create_task(flood())
    await joined.settled()
    assert WINDOW <= unread.queued < WINDOW + 2 * 1064
    for number in range(1000):
        await quick.send(b"%d" % number)
        assert await read.read() == b"%d" % number
    await unread.read()
    await unread.read()
    await unread.read()
    await joined.settled()
    assert unread.queued > WINDOW // 2  # it has read, so it is sent more
    flooding.cancel()


async def test_who_sends_more_than_there_is_room_for_is_ended_alone() -> None:
    joined = await Joined(their_window=WINDOW).greeted()
    rude, victim = await joined.pair()
    polite, other = await joined.pair()
    rude._credit = 1 << 30  # as a defect, or somebody else's program, would have it
    for _ in range(10):
        await rude.send(b"x" * 1000)
    await polite.send(b"still here")
    await joined.settled()
    assert victim.ended is not None
    assert await rude.read() is None
    assert rude.ended == mux_module.OVERRUN
    assert await other.read() == b"still here"
    assert joined.upper.overruns == 1
    with pytest.raises(StreamOver):
        await rude.send(b"more")


async def test_when_all_together_let_too_much_wait_the_slowest_is_ended() -> None:
    joined = await Joined(buffered_bytes_max=WINDOW).greeted()
    first, slow = await joined.pair()
    second, _ = await joined.pair()
    await first.send(b"x" * 2000)
    await first.send(b"x" * 1500)
    await second.send(b"x" * 1000)
    await joined.settled()
    assert slow.ended == mux_module.CROWDED
    assert first.ended == mux_module.CROWDED
    assert second.ended is None
    assert joined.upper.buffered == 1000 + mux_module.ENVELOPE_COST_BYTES


async def test_an_end_says_all_that_grpc_would() -> None:
    joined = await Joined().greeted()
    lower, upper = await joined.pair()
    await upper.send(b"last words")
    upper.end(BAD)
    upper.end(Ending())
    await joined.settled()
    assert await lower.read() == b"last words"
    assert await lower.read() is None
    assert lower.ended == BAD


async def test_what_is_not_urgent_waits_for_company_and_goes_with_what_is() -> None:
    joined = await Joined().greeted()
    joined.lower._linger_s = 3600
    lower, upper = await joined.pair()
    before = len(joined.messages)
    for _ in range(5):
        await lower.send(b"beat", urgent=False)
    await joined.settled()
    assert len(joined.messages) == before
    await lower.send(b"confirmed")
    assert [await upper.read() for _ in range(6)] == [b"beat"] * 5 + [b"confirmed"]
    assert len(joined.messages) == before + 1


async def test_the_end_of_the_carrying_stream_ends_all() -> None:
    joined = await Joined().greeted()
    pairs = [await joined.pair() for _ in range(3)]
    reading = [asyncio.create_task(lower.read()) for lower, _ in pairs]
    await joined.settled()
    joined.lower.close(BAD)
    assert await asyncio.gather(*reading) == [None] * 3
    assert all(lower.ended == BAD for lower, _ in pairs)
    with pytest.raises(StreamOver):
        joined.lower.open(relay_pb2.StreamOpened())


async def test_versions_that_are_too_far_apart_are_refused() -> None:
    joined = Joined()
    greeting = relay_pb2.RelayGreeting(protocol_min=7, protocol_max=9)
    with pytest.raises(AliquotError, match="7 to 9"):
        joined.upper.receive(relay_pb2.RelayBatch(greeting=greeting).SerializeToString())

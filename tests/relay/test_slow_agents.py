"""An agent that does not read, behind a relay that others use too; against a coordinator that talks without end."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import pytest

from aliquot.coordinator.agents.relayed.ending import Ending
from aliquot.coordinator.agents.relayed.mux import ENVELOPE_COST_BYTES, WINDOW_BYTES, Mux, Stream
from aliquot.v1 import agent_pb2, relay_pb2
from tests.coordinator.pool import eventually, reason_of, retry_after_ms
from tests.relay.relays import relaying

PIECE = b"x" * 16_384
# What gRPC and TCP hold besides, on both sides of one stream, with room to spare.
IN_BETWEEN_BYTES = 16 << 20


class Talker:
    """A coordinator in as far as relays need one: it answers `echo` with `echo`, and `flood` with all it can send."""

    def __init__(self) -> None:
        self.flooded = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._carry)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("aliquot.v1.RelayService", {"Carry": handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, _: Any, context: Any) -> None:
        mux = Mux(context.write, opened=self._opened)
        mux.greet("test")
        try:
            while isinstance(raw := await context.read(), bytes):
                mux.receive(raw)
        finally:
            mux.close(Ending())

    def _opened(self, stream: Stream, opened: relay_pb2.StreamOpened) -> None:
        self._tasks.add(asyncio.create_task(self._talk(stream)))

    async def _talk(self, stream: Stream) -> None:
        while (payload := await stream.read()) is not None:
            if payload == b"flood":
                while True:
                    await stream.send(PIECE)
                    self.flooded += len(PIECE) + ENVELOPE_COST_BYTES
            await stream.send(payload)


async def test_it_is_sent_a_bounded_amount_and_the_others_are_served() -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with Talker() as talker, relaying("--coordinator", f"127.0.0.1:{talker.port}") as relay:
        await eventually(relay.connected, "the relay has connected")
        async with (
            grpc.aio.insecure_channel(relay.address, options) as slow_channel,
            grpc.aio.insecure_channel(relay.address, options) as quick_channel,
        ):
            slow: Any = slow_channel.stream_stream("/aliquot.v1.AgentService/Session")()
            await slow.write(b"flood")
            await eventually(lambda: talker.flooded > WINDOW_BYTES, "it is flooded")
            quick: Any = quick_channel.stream_stream("/aliquot.v1.AgentService/Session")()
            for number in range(200):
                await quick.write(b"echo %d" % number)
                assert await quick.read() == b"echo %d" % number
            assert talker.flooded <= WINDOW_BYTES + IN_BETWEEN_BYTES
            assert await relay.value("aliquot_relay_buffered_bytes") <= 2 * WINDOW_BYTES
            sent = talker.flooded
            while talker.flooded <= sent + WINDOW_BYTES:  # it reads again, and is sent more
                assert await slow.read() == PIECE
            assert await relay.value("aliquot_relay_resets") == 0


def limits(folder: Path, **values: int) -> list[str]:
    """Flags that set these limits of a relay."""
    file = folder / "relay.toml"
    file.write_text("[relay.limits]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    return ["--config", str(file)]


async def test_when_too_much_waits_the_slowest_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        Talker() as talker,
        relaying("--coordinator", f"127.0.0.1:{talker.port}", *limits(tmp_path, buffered_mib=1)) as relay,
    ):
        await eventually(relay.connected, "the relay has connected")
        async with contextlib.AsyncExitStack() as stack:
            calls: list[Any] = []
            for _ in range(8):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(relay.address, options))
                calls.append(channel.stream_stream("/aliquot.v1.AgentService/Session")())
                await calls[-1].write(b"flood")
            await eventually(lambda: relay.value("aliquot_relay_resets"), "some are ended")
            assert await relay.value("aliquot_relay_buffered_bytes") <= 1 << 20
            ended = 0
            for call in calls:
                try:
                    for _ in range(1000):
                        assert await call.read() == PIECE
                except grpc.aio.AioRpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                    assert (reason_of(error), retry_after_ms(error) > 0) == ("OVERLOADED", True)
                    ended += 1
            assert 0 < ended < len(calls)


async def test_no_more_agents_are_let_in_than_the_coordinator_welcomes(tmp_path: Path) -> None:
    async with (
        Talker() as talker,
        relaying("--coordinator", f"127.0.0.1:{talker.port}", *limits(tmp_path, greetings_max=1)) as relay,
    ):
        await eventually(relay.connected, "the relay has connected")
        async with grpc.aio.insecure_channel(relay.address) as channel:
            first: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
            await first.wait_for_connection()
            await eventually(lambda: relay.value("aliquot_relay_agents"), "it is let in")
            second: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await second.read()
            assert (reason_of(refusal.value), retry_after_ms(refusal.value)) == ("OVERLOADED", 2_000)
            await first.write(b"echo")
            assert await first.read() == b"echo"
            third: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
            await third.write(b"echo")
            assert await third.read() == b"echo"


async def test_an_agent_whose_message_is_too_large_is_told_and_the_others_are_served() -> None:
    async with Talker() as talker, relaying("--coordinator", f"127.0.0.1:{talker.port}") as relay:
        await eventually(relay.connected, "the relay has connected")
        async with grpc.aio.insecure_channel(relay.address) as channel:
            quick: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
            large: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
            await quick.write(b"echo")
            assert await quick.read() == b"echo"
            await large.write(b"x" * ((4 << 20) - 1000))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await large.read()
            assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reason_of(refusal.value) == "MESSAGE_TOO_LARGE"
            await quick.write(agent_pb2.AgentMessage().SerializeToString() + b"still")
            assert await quick.read() == b"still"

"""Simulated agents in a process of their own, with real sessions over real gRPC.

They send what an idle agent sends: a heartbeat when nothing else was sent for an interval, now and then a delta, and at
once the confirmation of what they are told to run or stop. Messages are encoded once, so that this process uses little
processor time beside the one that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import resource
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).parents[2]))
from aliquot.common.backoff import Backoff
from aliquot.common.failures import failure_of
from aliquot.common.limits import GIB
from aliquot.v1 import agent_pb2, types_pb2
from bench.lib.pool import channel_to
from tests.pretended_node import PretendedNode, reports_message


class Fleet:
    """All agents of this process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.sent = 0
        self.received = 0
        self.ready = 0
        self.all_ready = asyncio.Event()
        self.random = random.Random(arguments.first)
        self._credentials: grpc.ChannelCredentials | None = None
        self.ca = Path(arguments.ca) if arguments.ca else None
        if self.ca is not None:
            self._credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())

    def channel(self) -> grpc.aio.Channel:
        """A new connection."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.arguments.address, options)
        return grpc.aio.secure_channel(self.arguments.address, self._credentials, options)

    def is_ready(self) -> None:
        """Count one more agent whose node is READY."""
        self.ready += 1
        if self.ready == self.arguments.agents:
            self.all_ready.set()


class Agent(PretendedNode):
    """One session."""

    __slots__ = ("_call", "_epoch", "_fleet", "_seq", "_turn")

    _GONE = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
    """What a call raises when the other side has ended it."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        super().__init__(
            f"agent-{number:05d}", [f"GPU-{number:05d}-{index}" for index in range(fleet.arguments.devices)]
        )
        self.telemetry = types_pb2.DeviceTelemetry(gpu_utilisation_percent=0, memory_used_bytes=GIB)
        self._fleet = fleet
        self._seq = 1
        self._epoch = 0
        self._call: Any = None
        self._turn = asyncio.Lock()

    async def connect(self, channel: grpc.aio.Channel) -> None:
        """Handshake and snapshot."""
        self._call = channel.stream_stream("/aliquot.v1.AgentService/Session")()
        greeting = self.hello()
        await self._send(greeting.SerializeToString())
        welcome = agent_pb2.CoordinatorMessage.FromString(await self._call.read())
        if welcome.HasField("challenge"):
            proof = self.proof(greeting.hello, welcome.challenge)
            await self._send(agent_pb2.AgentMessage(proof=proof).SerializeToString())
            welcome = agent_pb2.CoordinatorMessage.FromString(await self._call.read())
        self._epoch = welcome.welcome.session_epoch
        await self._describe()

    async def begin(self, channel: grpc.aio.Channel) -> None:
        """The first attempt to connect. If it is told to come back later, `stay` tries again."""
        with contextlib.suppress(*self._GONE):
            await self.connect(channel)

    async def _send(self, raw: bytes) -> None:
        async with self._turn:  # a stream takes one write at a time
            await self._call.write(raw)
        self._fleet.sent += 1

    async def _describe(self) -> None:
        await self._send(self.snapshot(self._seq).SerializeToString())

    async def stay(self, channel: grpc.aio.Channel) -> None:
        """Follow orders, and reconnect whenever the session ends, with an agent's waits."""
        backoff = Backoff()
        while True:
            with contextlib.suppress(*self._GONE):
                await self.read()
            said = failure_of(await self._call.code(), await self._call.details(), await self._call.trailing_metadata())
            await channel.close()
            await asyncio.sleep(backoff.next_s(said.retry_after_s or 0.0))
            channel = self._fleet.channel()
            with contextlib.suppress(*self._GONE):
                await self.connect(channel)
                backoff.succeeded()

    async def read(self) -> None:
        """Follow orders until the session ends."""
        told = False
        try:
            while True:
                raw = await self._call.read()
                if not isinstance(raw, bytes):
                    return
                told = await self._heard(raw, told=told)
        finally:
            self._fleet.ready -= told

    async def _heard(self, raw: bytes, *, told: bool) -> bool:
        """Follow an order. Returns whether the node is READY now."""
        self._fleet.received += 1
        message = agent_pb2.CoordinatorMessage.FromString(raw)
        kind = message.WhichOneof("message")
        if kind == "desired":
            if reports := self.obey(message.desired):
                await self._send(reports_message(self._epoch, reports).SerializeToString())
            if not told:
                self._fleet.is_ready()
            return True
        if kind == "snapshot_request":
            await self._describe()
        return told

    async def speak(self) -> None:
        """Send, and ignore a broken stream."""
        while True:
            with contextlib.suppress(*self._GONE):
                await self._speak()
            await asyncio.sleep(self._fleet.arguments.heartbeat)

    async def _speak(self) -> None:
        """Send a heartbeat or a delta per interval, without end; the first at a random moment of the first interval."""
        interval_s = self._fleet.arguments.heartbeat
        draw = self._fleet.random
        changes = interval_s / self._fleet.arguments.change_every if self._fleet.arguments.change_every else 0.0
        beat = agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(seq=self._seq)).SerializeToString()
        await asyncio.sleep(draw.random() * interval_s)
        while True:
            if draw.random() < changes:
                self._seq += 1
                await self._send(self._delta(draw))
                beat = agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(seq=self._seq)).SerializeToString()
            else:
                await self._send(beat)
            await asyncio.sleep(interval_s)

    def _delta(self, draw: random.Random) -> bytes:
        reading = types_pb2.DeviceTelemetry(
            gpu_utilisation_percent=draw.randrange(101),
            memory_used_bytes=draw.randrange(80 * GIB),
            temperature_c=draw.randrange(30, 90),
            power_mw=draw.randrange(400_000),
        )
        report = agent_pb2.DeviceReport(uuid=draw.choice(self.uuids), telemetry=reading, foreign_bytes=0, healthy=True)
        return agent_pb2.AgentMessage(delta=agent_pb2.Delta(seq=self._seq, devices=[report])).SerializeToString()


async def run(arguments: argparse.Namespace) -> None:
    """Connect all agents, report it, and go on until standard input ends."""
    fleet = Fleet(arguments)
    agents = [Agent(fleet, arguments.first + number) for number in range(arguments.agents)]
    async with channel_to(arguments.coordinator or arguments.address, fleet.ca) as channel:
        for start in range(0, len(agents), 200):
            await asyncio.gather(*(agent.join(channel) for agent in agents[start : start + 200]))
    channels = [fleet.channel() for _ in range(arguments.channels or arguments.agents)]
    tasks = []
    for start in range(0, len(agents), 100):
        some = agents[start : start + 100]
        await asyncio.gather(*(agent.begin(channels[(start + n) % len(channels)]) for n, agent in enumerate(some)))
        tasks += [
            asyncio.create_task(agent.stay(channels[(start + n) % len(channels)])) for n, agent in enumerate(some)
        ]
        if arguments.heartbeat:
            tasks += [asyncio.create_task(agent.speak()) for agent in some]
    await fleet.all_ready.wait()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        if not line:
            break
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(
            json.dumps(
                {
                    "sent": fleet.sent,
                    "received": fleet.received,
                    "ready": fleet.ready,
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                }
            ),
            flush=True,
        )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first agent")
    parser.add_argument("--channels", type=int, default=0, help="connections; 0: one per agent")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--heartbeat", type=float, default=5.0, help="seconds; 0: none")
    parser.add_argument("--change-every", type=float, default=30.0, help="seconds between two deltas of one agent")
    parser.add_argument("--ca", help="PEM file: connect with TLS")
    parser.add_argument("--coordinator", default="", help="where they join, if not at the address")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del soft
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

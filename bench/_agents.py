"""Agents in a process of their own: real sessions over real gRPC, nothing behind them.

They say what an agent with nothing new to say would: a heartbeat when nothing else was sent for an interval, now
and then a delta, and at once the confirmation of what they are told to run or stop. Messages are encoded once, so
that this process stays out of the way of the one that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import resource
import sys
from typing import Any

import grpc.aio

from aliquot.v1 import agent_pb2, types_pb2

_GIB = 1 << 30


class Fleet:
    """All agents of this process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.sent = 0
        self.received = 0
        self.ready = 0
        self.all_ready = asyncio.Event()
        self.random = random.Random(arguments.first)

    def is_ready(self) -> None:
        """One more agent has its node READY."""
        self.ready += 1
        if self.ready == self.arguments.agents:
            self.all_ready.set()


class Agent:
    """One session."""

    __slots__ = ("_call", "_epoch", "_fleet", "_held", "_node_id", "_seq", "_turn", "_uuids")

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._node_id = f"agent-{number:05d}"
        self._uuids = [f"GPU-{number:05d}-{index}" for index in range(fleet.arguments.devices)]
        self._seq = 1
        self._epoch = 0
        self._held: dict[str, agent_pb2.SliceReport] = {}
        self._call: Any = None
        self._turn = asyncio.Lock()

    async def connect(self, channel: grpc.aio.Channel) -> None:
        """Handshake and snapshot."""
        self._call = channel.stream_stream("/aliquot.v1.AgentService/Session")()
        hello = agent_pb2.Hello(protocol_min=1, protocol_max=1, agent_version="bench", node_id=self._node_id)
        await self._send(agent_pb2.AgentMessage(hello=hello).SerializeToString())
        welcome = agent_pb2.CoordinatorMessage.FromString(await self._call.read())
        self._epoch = welcome.welcome.session_epoch
        await self._snapshot()

    async def _send(self, raw: bytes) -> None:
        async with self._turn:  # a stream takes one write at a time
            await self._call.write(raw)
        self._fleet.sent += 1

    async def _snapshot(self) -> None:
        devices = [
            types_pb2.Device(
                uuid=uuid,
                index=index,
                model="A100-80",
                product_name="NVIDIA A100-SXM4-80GB",
                memory_total_bytes=80 * _GIB,
                memory_reserved_bytes=_GIB // 2,
                healthy=True,
                tiers=[types_pb2.TIER_NONE, types_pb2.TIER_WATCHDOG],
                telemetry=types_pb2.DeviceTelemetry(gpu_utilisation_percent=0, memory_used_bytes=_GIB),
            )
            for index, uuid in enumerate(self._uuids)
        ]
        node = types_pb2.Node(node_id=self._node_id, name=self._node_id, devices=devices, driver_version="580.65")
        snapshot = agent_pb2.Snapshot(seq=self._seq, node=node, slices=self._held.values())
        await self._send(agent_pb2.AgentMessage(snapshot=snapshot).SerializeToString())

    async def read(self) -> None:
        """Obey until the session ends."""
        told = False
        while True:
            raw = await self._call.read()
            if not isinstance(raw, bytes):
                return
            self._fleet.received += 1
            message = agent_pb2.CoordinatorMessage.FromString(raw)
            kind = message.WhichOneof("message")
            if kind == "desired":
                await self._obey(message.desired)
                if not told:
                    told = True
                    self._fleet.is_ready()
            elif kind == "snapshot_request":
                await self._snapshot()

    async def _obey(self, desired: agent_pb2.Desired) -> None:
        for slice_id in desired.settled:
            self._held.pop(slice_id, None)
        reports = []
        for wanted in desired.slices:
            run = wanted.state == agent_pb2.DESIRED_STATE_RUN
            report = agent_pb2.SliceReport(
                slice_id=wanted.slice_id,
                lease_id=wanted.lease_id,
                lease_epoch=wanted.lease_epoch,
                status=agent_pb2.SLICE_STATUS_ACTIVE if run else agent_pb2.SLICE_STATUS_GONE,
                tier=types_pb2.TIER_WATCHDOG,
                device_uuid=wanted.device_uuid,
                share_milli=wanted.share_milli,
                memory_bytes=wanted.memory_bytes,
            )
            self._held[wanted.slice_id] = report
            reports.append(report)
        if reports:
            message = agent_pb2.SliceReports(session_epoch=self._epoch, reports=reports)
            await self._send(agent_pb2.AgentMessage(reports=message).SerializeToString())

    async def speak(self) -> None:
        """A heartbeat or a delta per interval, for ever; the first at a random moment of the first interval."""
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
            memory_used_bytes=draw.randrange(80 * _GIB),
            temperature_c=draw.randrange(30, 90),
            power_mw=draw.randrange(400_000),
        )
        report = agent_pb2.DeviceReport(uuid=draw.choice(self._uuids), telemetry=reading, foreign_bytes=0, healthy=True)
        return agent_pb2.AgentMessage(delta=agent_pb2.Delta(seq=self._seq, devices=[report])).SerializeToString()


async def run(arguments: argparse.Namespace) -> None:
    """Connect everybody, say so, and go on until standard input ends."""
    fleet = Fleet(arguments)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    wanted = arguments.channels or arguments.agents
    credentials = None
    if arguments.ca:
        with open(arguments.ca, "rb") as file:  # noqa: PTH123, ASYNC230 - before anything runs
            credentials = grpc.ssl_channel_credentials(file.read())
    channels = [
        grpc.aio.secure_channel(arguments.address, credentials, options)
        if credentials
        else grpc.aio.insecure_channel(arguments.address, options)
        for _ in range(wanted)
    ]
    agents = [Agent(fleet, arguments.first + number) for number in range(arguments.agents)]
    tasks = []
    for start in range(0, len(agents), 100):
        some = agents[start : start + 100]
        await asyncio.gather(*(agent.connect(channels[(start + n) % len(channels)]) for n, agent in enumerate(some)))
        tasks += [asyncio.create_task(agent.read()) for agent in some]
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
            json.dumps({"sent": fleet.sent, "received": fleet.received, "cpu_s": usage.ru_utime + usage.ru_stime}),
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
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del soft
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

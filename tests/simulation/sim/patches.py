"""Where an agent reaches for the machine (clocks, /proc, threads, sockets, gRPC), it gets the simulated world's.

Everything that decides already takes time, ids and randomness as arguments. What is replaced here are the few names at
the edges, and only while a simulation runs: nothing in production code knows of it. Coordinators are given theirs
(`coordinators`).
"""

from __future__ import annotations

import signal as real_signal
import sys
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn, Self
from unittest import mock

import grpc
import grpc.aio

from aliquot.agent import agent as agent_module
from aliquot.agent import durable, partitions, processes, reporting, signals, stream
from aliquot.agent.cgroups import ContainmentError
from aliquot.agent.enforce.none import NoEnforcer
from aliquot.agent.enforce.watchdog import WatchdogEnforcer
from aliquot.agent.stream import Stream
from aliquot.common.backoff import Backoff
from aliquot.common.clock import SystemClock
from aliquot.v1 import agent_pb2
from tests.simulation.sim import mig
from tests.simulation.sim.checkpoint import SimCheckpoint, SimIdentity
from tests.simulation.sim.loop import SimLoop, current
from tests.simulation.sim.machine import SimDriverTier, SimGuard, SimProcesses, SimTree
from tests.simulation.sim.network import Connection, Network
from tests.simulation.sim.server import AGENT_SESSION

MIDNIGHT_MS = 1_790_035_200_000
EPOCH_MS = MIDNIGHT_MS - 60_000
"""Wall clock at the start of each simulation: a day ends while it runs."""


class SimTime:
    """The module `time`, as one part of the world sees it.

    The precise counter moves on a little with every look, as a real one would, so that the writer's turns end at
    moments that differ from seed to seed.
    """

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._looked_ns = 0
        self.step_ns = 8_000

    def perf_counter(self) -> float:
        """Seconds."""
        return self.perf_counter_ns() / 1e9

    def time(self) -> float:
        """Seconds since 1970, unstepped."""
        return EPOCH_MS / 1000 + self._loop.now_us / 1e6

    def perf_counter_ns(self) -> int:
        """Nanoseconds."""
        self._looked_ns += self._random.randrange(self.step_ns)
        return self._loop.now_us * 1000 + self._looked_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return self._loop.now_us * 1000

    def monotonic(self) -> float:
        """Seconds."""
        return self._loop.now_us / 1e6


class WallClock:
    """The time that one host's system clock shows: it may be stepped, and the host may sleep."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.stepped_us = 0
        self.asleep_us = 0

    def make(self, not_before_ms: int = 0) -> SystemClock:
        """A production clock on this host."""
        return SystemClock(
            not_before_ms,
            wall_ns=lambda: EPOCH_MS * 1_000_000 + (self._loop.now_us + self.stepped_us) * 1000,
            elapsed_ns=lambda: self._loop.now_us * 1000,
            running_ns=lambda: (self._loop.now_us - self.asleep_us) * 1000,
        )


class SimCall:
    """The client's end of an agent's stream, as `grpc.aio` shows it."""

    def __init__(self, network: Network, address: str) -> None:
        process = current()
        self._connection: Connection | None = network.connect(process.host.host, address, AGENT_SESSION, process)
        self._address = address

    async def write(self, message: agent_pb2.AgentMessage) -> None:
        """Send."""
        await self._alive().client_write(message.SerializeToString())

    async def read(self) -> Any:
        """Receive."""
        data = await self._alive().client_read()
        return agent_pb2.CoordinatorMessage.FromString(data) if isinstance(data, bytes) else data

    def cancel(self) -> None:
        """Done with it."""
        if self._connection is not None:
            self._connection.client_cancel()

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        status = self._alive().status
        return grpc.StatusCode.OK if status is None else status.code

    async def details(self) -> str:
        """Why it ended."""
        status = self._alive().status
        return "" if status is None else status.details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What came with the end."""
        status = self._alive().status
        return grpc.aio.Metadata(*(status.metadata if status is not None else ()))

    def _alive(self) -> Connection:
        if self._connection is None:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                details=f"no way to {self._address}",
            )
        return self._connection


class SimChannel:
    """What the agent opens before it calls."""

    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Who is not there is found out by the call."""
        return grpc.ChannelConnectivity.READY

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class SimStub:
    """The generated stub of AgentService."""

    def __init__(self, channel: SimChannel) -> None:
        self._channel = channel

    def Session(self) -> SimCall:  # noqa: N802 - the contract's name
        """Begin a session."""
        return SimCall(self._channel.network, self._channel.address)


class SimEvents:
    """XIDs, handed over by the machine instead of by a thread."""

    def __init__(self, backend: object, take: Callable[..., Any]) -> None:
        current().host.take_event = take

    async def run(self) -> None:
        """The machine calls `take` itself."""


class SimLocalServer:
    """The local socket without the socket: jobs of the simulated machine call the service directly."""

    def __init__(self, service: Any, path: object) -> None:
        current().host.local = service

    async def start(self) -> None:
        """Nothing to listen on."""

    async def close(self) -> None:
        """Nothing to close."""


class NoMetrics:
    """An agent's metrics endpoint is another thread's: nobody scrapes here."""

    def __init__(self) -> None:
        self.registry = SimpleNamespace(register=lambda collector: None)

    def observe_poll(self, seconds: float) -> None:
        """Not kept."""

    def close(self) -> None:
        """Nothing to close."""


def _deliver(descriptor: int, what: int) -> None:
    current().host.signal(descriptor, what)


def _clock(not_before_ms: int = 0) -> SystemClock:
    clock: SystemClock = current().host.clock.make(not_before_ms)
    return clock


def _forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError(f"simulated code reached for the real {what}")

    return refuse


@contextmanager
def simulated(loop: SimLoop, network: Network, random: Random, time: SimTime, table: Any) -> Iterator[None]:
    """Redirect the agents to this world."""
    procs = SimProcesses(loop, table, current)
    kernel = SimpleNamespace(
        getpid=lambda: 1,
        pidfd_open=lambda pid: _open(table, pid),
        close=lambda descriptor: None,
        sched_getaffinity=_forbidden("machine"),
    )
    kill = SimpleNamespace(
        Signals=real_signal.Signals,
        pidfd_send_signal=_deliver,
    )
    identity = SimpleNamespace(
        boot_id=lambda: current().host.boot_id,
        Identity=SimpleNamespace(open=lambda path, configured, uuids: SimIdentity(current().host.disk, configured)),
    )
    checkpoint = SimpleNamespace(open=lambda directory, boot_id: SimCheckpoint(current().host.disk, boot_id))
    tree = SimpleNamespace(open=lambda node_id, base: _tree())
    with ExitStack() as stack:
        put: Callable[..., Any] = lambda *a, **k: stack.enter_context(mock.patch.object(*a, **k))  # noqa: E731
        for module in list(sys.modules.values()):
            if module.__name__.startswith("aliquot.agent") and vars(module).get("time") is real_time:
                put(module, "time", time)
        put(agent_module, "identity", identity)
        put(agent_module, "Checkpoint", checkpoint)
        put(agent_module, "CgroupTree", tree)
        put(agent_module, "DeviceGuard", lambda timeout_s: SimGuard(current().host, timeout_s))
        put(agent_module, "SystemClock", _clock)
        put(partitions, "mig_geometry", SimpleNamespace(read_instances=mig.read_instances, apply=mig.apply))
        put(partitions, "durable", mig.SimRecords(durable.Damaged))
        put(agent_module, "EventWatcher", SimEvents)
        put(agent_module, "assemble", _tiers)
        put(agent_module, "machine", SimpleNamespace(in_pid_namespace=lambda: False))
        put(agent_module, "LocalServer", SimLocalServer)
        put(agent_module, "Metrics", NoMetrics)
        put(agent_module, "NodeCollector", lambda *a: None)
        put(agent_module, "version", lambda: "0")
        put(reporting, "machine", SimpleNamespace(cpu_milli=lambda: 64_000, memory_bytes=lambda: 512 << 30))
        put(signals.Signaller, "_send", _remembering(signals.Signaller._send))
        put(signals, "os", kernel)
        put(signals, "signal", kill)
        put(signals, "available", lambda: "")
        put(signals, "_ended", lambda descriptor: descriptor not in table.by_pid)
        put(stream, "random", random)
        put(stream, "Backoff", lambda: Backoff(random=random))
        put(stream, "agent_pb2_grpc", SimpleNamespace(AgentServiceStub=SimStub))
        put(Stream, "_channel", lambda self, address: SimChannel(network, address))
        for name in (
            "key_of",
            "alive",
            "facts_of",
            "cgroup_of",
            "uids_of",
            "name_of",
            "pids",
            "ancestors",
            "now_ticks",
            "alone_in",
        ):
            put(processes, name, getattr(procs, name))
        yield


def _tiers(*_: object, blind: Any, powerless: Any, **__: object) -> list[Any]:
    """The tiers that need nothing of the real machine, and a driver's that is simulated."""
    return [NoEnforcer(), WatchdogEnforcer(blind, powerless), SimDriverTier(current().host)]


def _remembering(send: Callable[..., Any]) -> Callable[..., Any]:
    """Keep for the auditor's message what the agent says it signals for."""

    def remember(self: Any, target: Any, what: Any) -> Any:
        current().host.why = target.why
        return send(self, target, what)

    return remember


def _open(table: Any, pid: int) -> int:
    if pid not in table.by_pid:
        raise ProcessLookupError(pid)
    return pid


def _tree() -> SimTree | None:
    host = current().host
    if not host.has_cgroups:
        raise ContainmentError("no cgroup can be made here")
    return SimTree(host)

"""A real coordinator in this process, with real gRPC, and agents that speak the real protocol to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.clock import Clock
from aliquot.common.duration import DurationMs
from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.leading import Leading
from aliquot.coordinator.means import Means
from aliquot.coordinator.settings.config import LimitSettings, Settings
from aliquot.coordinator.upkeep.collector import GarbageCollector
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.v1 import agent_pb2, agent_pb2_grpc, leases_pb2, leases_pb2_grpc, pool_pb2, pool_pb2_grpc, types_pb2
from tests.identity import access, insecure_channel
from tests.pretended_node import PretendedNode, reports_message

DEADLINE_S = 30.0


@dataclass
class Pool:
    """A running coordinator and stubs that talk to it."""

    coordinator: Coordinator
    channel: grpc.aio.Channel
    leases: leases_pb2_grpc.LeaseServiceAsyncStub
    nodes: pool_pb2_grpc.PoolServiceAsyncStub

    @property
    def address(self) -> str:
        return self.coordinator.address

    @property
    def leading(self) -> Leading:
        """Its parts, which there are as long as it leads."""
        assert self.coordinator.leading is not None
        return self.coordinator.leading

    async def declare(self, count: int = 1, *, devices: int = 1, model: str = "A100-80", prefix: str = "node") -> None:
        """Nodes without agents."""
        nodes = [declared(f"{prefix}-{number}", devices, model) for number in range(count)]
        await self.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=nodes))

    async def allocate(self, gpu: str = "1", **fields: Any) -> types_pb2.Lease:
        """A lease, waiting for it to be granted unless told otherwise."""
        return (await self.leases.Allocate(allocation(gpu, **fields))).lease

    async def release(self, lease_id: str) -> types_pb2.Lease:
        return (await self.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id))).lease

    async def get(self, lease_id: str) -> types_pb2.Lease:
        return await self.leases.Get(leases_pb2.GetRequest(lease_id=lease_id))

    def watch(self, **fields: Any) -> Any:
        """An open Watch; the library's type of it does not say what `read` gives."""
        return self.leases.Watch(leases_pb2.WatchRequest(**fields))

    async def node(self, node_id: str) -> types_pb2.Node:
        return await self.nodes.GetNode(pool_pb2.GetNodeRequest(node_id=node_id))


def declared(node_id: str, devices: int = 1, model: str = "A100-80", name: str = "") -> types_pb2.Node:
    parts = [types_pb2.Device(model=model) for _ in range(devices)]
    return types_pb2.Node(node_id=node_id, name=name, agentless=True, devices=parts)


def allocation(gpu: str = "1", **fields: Any) -> leases_pb2.AllocateRequest:
    """Fields of the call by their names, all others are fields of the request."""
    call = {name: fields.pop(name) for name in ("idempotency_key", "wait_until", "wait_timeout_ms") if name in fields}
    fields.setdefault("tenant", "team")
    return leases_pb2.AllocateRequest(request=types_pb2.LeaseRequest(gpu=gpu, **fields), **call)


def settings_for(journal: str = "memory:", **fields: Any) -> Settings:
    fields.setdefault("metrics_port", -1)
    fields.setdefault("access", access())
    fields.setdefault("limits", LimitSettings())
    fields.setdefault("clock_skew_max", DurationMs(0))  # tests set their clocks as they like
    return Settings(listen="127.0.0.1:0", journal=journal, **fields)


def sqlite(path: Path) -> str:
    return f"sqlite:{path}"


class KeptCollector(GarbageCollector):
    """Leaves the garbage collector as it is: hundreds of coordinators start in a process of tests, and to look through
    all that the process has loaded costs half a second each time.
    """

    def hold_off(self) -> None:
        """See the base class."""

    def settle(self) -> None:
        """See the base class."""


@contextlib.asynccontextmanager
async def running(
    settings: Settings | None = None, *, journal: Journal | None = None, clock: Clock | None = None
) -> AsyncIterator[Pool]:
    """A coordinator that is stopped in order at the end."""
    means = Means(garbage_collector=KeptCollector)
    if clock is not None:
        means = replace(means, clock=lambda not_before_ms: clock)
    coordinator = Coordinator(settings or settings_for(), journal=journal, means=means)
    await coordinator.start()
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with insecure_channel(coordinator.address) as channel:
            yield Pool(
                coordinator,
                channel,
                leases_pb2_grpc.LeaseServiceStub(channel),
                pool_pb2_grpc.PoolServiceStub(channel),
            )
    finally:
        coordinator.stop()
        await serving


async def eventually(condition: Callable[[], Awaitable[Any] | Any], what: str) -> Any:
    """Poll until `condition` gives something true; returns it. Fails after a generous deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if loop.time() > deadline:
            raise AssertionError(f"did not happen within {DEADLINE_S} s: {what}")
        await asyncio.sleep(0.02)


# -- errors


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            return status_pb2.Status.FromString(value)
    raise AssertionError(f"no details in {error!r}")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    return error_info(status_of(error)).reason


def error_info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "aliquot.dev"
    return info


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    bad = error_details_pb2.BadRequest()
    for detail in status_of(error).details:
        if detail.Unpack(bad):
            return [violation.field for violation in bad.field_violations]
    return []


def retry_after_ms(error: grpc.aio.AioRpcError) -> int:
    retry = error_details_pb2.RetryInfo()
    for detail in status_of(error).details:
        if detail.Unpack(retry):
            return retry.retry_delay.ToMilliseconds()
    return 0


# -- agents


class Agent(PretendedNode):
    """An agent that speaks the protocol, as far as a test tells it to. It joins the pool before it first connects."""

    def __init__(self, address: str, node_id: str, *, name: str = "", uuids: tuple[str, ...] = ()) -> None:
        super().__init__(node_id, uuids or (f"GPU-{node_id}-0",), name=name)
        self.desired: list[agent_pb2.Desired] = []
        self.settled: list[str] = []
        self.received: list[str] = []
        self.certificates: list[agent_pb2.Certificate] = []
        self.welcome = agent_pb2.Welcome()
        self.delta_seq = 0
        self.ended: grpc.aio.AioRpcError | None = None
        self.joined = False
        self._channel = insecure_channel(address)
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Shake hands and describe the node. Raises what the coordinator refused with."""
        if not self.joined:
            await self.join(self._channel)
            self.joined = True
        self._call = agent_pb2_grpc.AgentServiceStub(self._channel).Session()
        answer = await self.shake_hands(self._call, self.welcome.leader_epoch)
        assert answer is not grpc.aio.EOF
        assert answer.HasField("welcome")
        self.welcome = answer.welcome
        await self.listen()

    async def listen(self) -> None:
        """Describe the node, and obey from now on."""
        await self.describe()
        self._reader = asyncio.create_task(self._read())

    async def send(self, **message: Any) -> None:
        await self._call.write(agent_pb2.AgentMessage(**message))

    async def describe(self) -> None:
        """Send a snapshot."""
        self.delta_seq = 1
        await self._call.write(self.snapshot(self.delta_seq))

    async def heartbeat(self) -> None:
        await self.send(heartbeat=agent_pb2.Heartbeat(seq=self.delta_seq))

    async def delta(self, *devices: agent_pb2.DeviceReport) -> None:
        self.delta_seq += 1
        await self.send(delta=agent_pb2.Delta(seq=self.delta_seq, devices=devices))

    async def report(self, *reports: agent_pb2.SliceReport, session_epoch: int | None = None) -> None:
        epoch = self.welcome.session_epoch if session_epoch is None else session_epoch
        await self._call.write(reports_message(epoch, reports))

    async def _read(self) -> None:
        try:
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    return
                self.received.append(message.WhichOneof("message"))
                if self.received[-1] == "certificate":
                    self.certificates.append(message.certificate)
                if self.received[-1] == "desired":
                    self.desired.append(message.desired)
                    self.settled += message.desired.settled
                    if reports := self.obey(message.desired):
                        await self.report(*reports)
                elif self.received[-1] == "snapshot_request":
                    await self.describe()
        except grpc.aio.AioRpcError as error:
            self.ended = error

    async def disconnect(self) -> None:
        """Vanish, as a machine that loses its network does once TCP notices."""
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None

    async def close(self) -> None:
        await self.disconnect()
        await self._channel.close()


@contextlib.asynccontextmanager
async def agents(*several: Agent) -> AsyncIterator[None]:
    """Connect them all, and close them at the end. Each is registered, or has been told why not."""
    try:
        for agent in several:
            await agent.connect()
            await eventually(lambda agent=agent: agent.received or agent.ended, "it is told what to hold")  # type: ignore[misc]
        yield
    finally:
        for agent in several:
            await agent.close()

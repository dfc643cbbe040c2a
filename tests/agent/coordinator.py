"""A coordinator for tests: real gRPC, no decisions. The test says what is desired and reads what the agent
says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc

from aliquot.v1 import agent_pb2, agent_pb2_grpc

Predicate = Callable[[], bool]


@dataclass
class Coordinator(agent_pb2_grpc.AgentServiceServicer):
    """Accepts one agent after the other; `messages` is all that any of them said."""

    leader_epoch: int = 1
    session_epoch: int = 0
    heartbeat_ms: int = 200
    delta_min_ms: int = 100
    refuse: tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]] | None = None
    hellos: list[agent_pb2.Hello] = field(default_factory=list)
    snapshots: list[agent_pb2.Snapshot] = field(default_factory=list)
    deltas: list[agent_pb2.Delta] = field(default_factory=list)
    heartbeats: list[agent_pb2.Heartbeat] = field(default_factory=list)
    reports: list[agent_pb2.SliceReport] = field(default_factory=list)
    report_epochs: list[int] = field(default_factory=list)
    hits: list[agent_pb2.LeaseHit] = field(default_factory=list)
    address: str = ""
    sessions: int = 0
    _server: grpc.aio.Server | None = None
    _out: asyncio.Queue[agent_pb2.CoordinatorMessage | None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, port: int = 0, tls: grpc.ServerCredentials | None = None) -> Coordinator:
        self._server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        wanted = f"127.0.0.1:{port}"
        bound = self._server.add_insecure_port(wanted) if tls is None else self._server.add_secure_port(wanted, tls)
        self.address = f"127.0.0.1:{bound}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self.end_session()
            await self._server.stop(2.0)
            self._server = None

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[agent_pb2.AgentMessage],
        context: grpc.aio.ServicerContext[agent_pb2.AgentMessage, agent_pb2.CoordinatorMessage],
    ) -> AsyncIterator[agent_pb2.CoordinatorMessage]:
        first = await anext(request_iterator)
        self.hellos.append(first.hello)
        self._changed.set()
        if self.refuse is not None:
            code, text, metadata = self.refuse
            await context.abort(code, text, metadata)
        self.session_epoch += 1
        self.sessions += 1
        out: asyncio.Queue[agent_pb2.CoordinatorMessage | None] = asyncio.Queue()
        self._out = out
        yield agent_pb2.CoordinatorMessage(
            welcome=agent_pb2.Welcome(
                protocol=1,
                session_epoch=self.session_epoch,
                leader_epoch=self.leader_epoch,
                intervals=agent_pb2.Intervals(heartbeat_ms=self.heartbeat_ms, delta_min_ms=self.delta_min_ms),
            )
        )
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while (message := await out.get()) is not None:
                yield message
        finally:
            reading.cancel()

    async def _read(self, messages: AsyncIterator[agent_pb2.AgentMessage]) -> None:
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "snapshot":
                self.snapshots.append(message.snapshot)
                self.reports.extend(message.snapshot.slices)
            elif kind == "delta":
                self.deltas.append(message.delta)
            elif kind == "heartbeat":
                self.heartbeats.append(message.heartbeat)
            elif kind == "reports":
                self.reports.extend(message.reports.reports)
                self.hits.extend(message.reports.hits)
                self.report_epochs.append(message.reports.session_epoch)
            self._changed.set()

    def send(self, message: agent_pb2.CoordinatorMessage) -> None:
        assert self._out is not None
        self._out.put_nowait(message)

    def end_session(self) -> None:
        if self._out is not None:
            self._out.put_nowait(None)

    def desire(
        self,
        *slices: agent_pb2.DesiredSlice,
        full: bool = False,
        settled: tuple[str, ...] = (),
        leader_epoch: int | None = None,
        session_epoch: int | None = None,
    ) -> None:
        desired = agent_pb2.Desired(
            leader_epoch=self.leader_epoch if leader_epoch is None else leader_epoch,
            session_epoch=self.session_epoch if session_epoch is None else session_epoch,
            full=full,
            slices=slices,
            settled=settled,
        )
        self.send(agent_pb2.CoordinatorMessage(desired=desired))

    async def until(self, predicate: Predicate, what: str, seconds: float = 30.0) -> None:
        """Wait until something the agent said makes the predicate true."""
        async with asyncio.timeout(seconds):
            while not predicate():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self._changed.wait()
        assert predicate(), what

    def last(self, slice_id: str) -> agent_pb2.SliceReport | None:
        """The last thing said of a slice."""
        return next((report for report in reversed(self.reports) if report.slice_id == slice_id), None)

    async def until_status(self, slice_id: str, status: agent_pb2.SliceStatus.ValueType) -> agent_pb2.SliceReport:
        def there() -> bool:
            report = self.last(slice_id)
            return report is not None and report.status == status

        await self.until(there, f"{slice_id} became {agent_pb2.SliceStatus.Name(status)}")
        report = self.last(slice_id)
        assert report is not None
        return report

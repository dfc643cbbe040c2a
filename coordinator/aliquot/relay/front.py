"""The side of a relay that agents connect to: AgentService, with each stream passed on undecoded.

Only the first byte of a message is looked at: heartbeats and measurements may wait a moment to be sent with others, all
else is sent at once. An agent that can't be served is told why and when to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from aliquot.coordinator.agents.relayed.ending import Ending, overloaded, refusal
from aliquot.coordinator.agents.relayed.mux import AGENT_PAYLOAD_BYTES_MAX, Mux, Stream, StreamOver
from aliquot.coordinator.wire.refused_streams import read_before_refusing
from aliquot.relay.config import LimitSettings
from aliquot.relay.metrics import RelayMetrics
from aliquot.relay.refusing import leaving, no_leader
from aliquot.v1 import agent_pb2, relay_pb2

Context = grpc.aio.ServicerContext[Any, Any]

_PATIENT = frozenset({0x1A, 0x22})
"""First bytes of an AgentMessage that holds a Delta (field 3) or a Heartbeat (field 4), both length-delimited."""
_GONE = Ending(grpc.StatusCode.CANCELLED, "the agent is gone")
_RETRY_MS = 2_000
_AUTHORIZATION = "authorization"
_AUTHORIZATION_CHARS_MAX = 8_192


class Front:
    """See the module's docstring."""

    def __init__(
        self,
        limits: LimitSettings,
        metrics: RelayMetrics,
        upstream: Callable[[], Mux | None],
        lag_ms: Callable[[], int],
    ) -> None:
        self._limits = limits
        self._metrics = metrics
        self._upstream = upstream
        self._lag_ms = lag_ms
        self._streams: dict[Stream, None] = {}
        self._greeting = 0
        self._leaving = False

    def __len__(self) -> int:
        return len(self._streams)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's one method."""

        async def session(_: Any, context: Context) -> None:  # noqa: ANN401 - the iterator, which is not used
            await self._session(context)

        service = agent_pb2.DESCRIPTOR.services_by_name["AgentService"]
        return grpc.method_handlers_generic_handler(
            service.full_name, {"Session": grpc.stream_stream_rpc_method_handler(session)}
        )

    def _refused(self, mux: Mux | None) -> Ending | None:
        """Why a new agent can't be served now."""
        reason, ending = "", None
        if self._leaving:
            reason, ending = "leaving", leaving(_RETRY_MS)
        elif mux is None:
            reason, ending = "no_leader", no_leader(0)
        elif len(self._streams) >= self._limits.agents_max:
            said = f"{self._limits.agents_max} agents are connected to this relay, which is the bound"
            reason, ending = "agents", overloaded(said, 5 * _RETRY_MS)
        elif self._greeting >= self._limits.greetings_max:
            said = f"{self._greeting} agents wait for the coordinator's welcome already"
            reason, ending = "greetings", overloaded(said, _RETRY_MS)
        elif self._lag_ms() > self._limits.lag:
            reason, ending = "lag", overloaded(f"this relay is {self._lag_ms()} ms behind", _RETRY_MS)
        if ending is not None:
            self._metrics.shed[reason] += 1
        return ending

    async def _session(self, context: Context) -> None:
        mux = self._upstream()
        refused = self._refused(mux)
        if refused is not None or mux is None:
            await read_before_refusing(context)
            await _abort(context, refused or no_leader(0))
            return
        try:
            stream = mux.open(_who(context))
        except StreamOver:
            await read_before_refusing(context)
            await _abort(context, no_leader(0))
            return
        self._metrics.sessions += 1
        self._streams[stream] = None
        self._greeting += 1
        up = asyncio.get_running_loop().create_task(_upwards(context, stream))
        try:
            await self._downwards(context, stream)
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            pass  # written to after the agent has gone
        finally:
            stream.end(_GONE)
            del self._streams[stream]
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)

    async def _downwards(self, context: Context, stream: Stream) -> None:
        """What the coordinator says, to the agent, until either ends it."""
        try:
            payload = await stream.read()
        finally:
            self._greeting -= 1
        while payload is not None:
            await context.write(payload)
            payload = await stream.read()
        if stream.ended is not None and stream.ended.code is not grpc.StatusCode.OK:
            await _abort(context, stream.ended)

    async def leave(self, drain_ms: int) -> None:
        """Ask the agents to go elsewhere, one after the other over that time."""
        self._leaving = True
        streams = list(self._streams)
        goodbye = agent_pb2.Goodbye(reason="SHUTTING_DOWN", reconnect_after_ms=100)
        said = agent_pb2.CoordinatorMessage(goodbye=goodbye).SerializeToString()
        for stream in streams:
            stream.hear(said)
            stream.dismiss(leaving(100))
            await asyncio.sleep(drain_ms / 1000 / len(streams))
        while self._streams:  # noqa: ASYNC110 - the server's grace bounds it
            await asyncio.sleep(0.02)


async def _upwards(context: Context, stream: Stream) -> None:
    """What the agent says, to the coordinator, until either ends it."""
    try:
        while isinstance(raw := await context.read(), bytes):
            if len(raw) > AGENT_PAYLOAD_BYTES_MAX:
                said = f"{len(raw)} bytes; at most {AGENT_PAYLOAD_BYTES_MAX} go through a relay"
                code = grpc.StatusCode.RESOURCE_EXHAUSTED
                stream.dismiss(refusal(code, "MESSAGE_TOO_LARGE", said, 15 * _RETRY_MS))
                return
            await stream.send(raw, urgent=not raw or raw[0] not in _PATIENT)
        stream.dismiss(Ending())
    except (StreamOver, grpc.aio.UsageError, asyncio.InvalidStateError):
        return  # whoever writes to the agent sees it too


def _who(context: Context) -> relay_pb2.StreamOpened:
    pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
    authorization = next((v for k, v in context.invocation_metadata() or () if k == _AUTHORIZATION), "")
    return relay_pb2.StreamOpened(
        peer=context.peer(),
        certificate_pem=pem,
        authorization=str(authorization)[:_AUTHORIZATION_CHARS_MAX],
    )


async def _abort(context: Context, ending: Ending) -> None:
    await context.abort(ending.code, ending.message, ending.trailers)

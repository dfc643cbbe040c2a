"""The coordinator's gRPC server without gRPC: the same handlers, called by the simulated network.

It stands in for `aliquot.coordinator.rpc.server.Server`. The services register with it through the generated code, and
the bytes of requests and answers go through the generated (de)serialisers, so that only the transport is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from aliquot.common.tls import OwnTls, ServerTls
from aliquot.coordinator.rpc.server import Serving
from tests.simulation.sim.calls import CallContext, Metadata
from tests.simulation.sim.loop import Process, current
from tests.simulation.sim.network import Connection

AGENT_SESSION = "/aliquot.v1.AgentService/Session"
KEEP_ALIVE = "/aliquot.v1.LeaseService/KeepAlive"
WATCH = "/aliquot.v1.LeaseService/Watch"


class _Registry:
    """What the generated code registers with."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.generic = list(handlers)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio.Server."""
        self.generic += handlers

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Known from the generic ones already."""


class SimServer(Serving):
    """See the module's docstring."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        self.process: Process = current()
        self.grpc = _Registry(handlers)
        self.granting = False
        self._stopped = False

    def listen(self, address: str, tls: ServerTls | OwnTls | None) -> str:
        """The address is the host's."""
        return address

    async def serve(self, *, leading: bool) -> None:
        """Be found by the network."""
        host = self.process.host
        host.network.servers[host.host] = self

    async def set_leading(self, *, leading: bool) -> None:
        """Nobody asks."""

    async def set_granting(self, *, granting: bool) -> None:
        """For health checks."""
        self.granting = granting

    async def stop(self, grace_s: float) -> None:
        """Not to be found any more."""
        host = self.process.host
        self._stopped = True
        if host.network.servers.get(host.host) is self:
            del host.network.servers[host.host]

    def _method(self, path: str, metadata: Metadata) -> Any:
        """Asked anew for each call, which the gate lets in or not: then it has no (de)serialisers."""
        details: Any = SimpleNamespace(method=path, invocation_metadata=metadata)
        return next(h for handler in self.grpc.generic if (h := handler.service(details)) is not None)

    async def accept(self, connection: Connection) -> None:
        """A stream begins."""
        method = self._method(connection.note, connection.invocation_metadata())
        if method.request_deserializer is None:
            await method.stream_stream(None, connection)
            return

        if connection.note == WATCH:
            data = await connection.read()
            if isinstance(data, bytes):
                async for event in method.unary_stream(method.request_deserializer(data), connection):
                    await connection.write(method.response_serializer(event))
            return

        async def requests() -> Any:
            while isinstance(data := await connection.read(), bytes):
                yield method.request_deserializer(data)

        async for response in method.stream_stream(requests(), connection):
            await connection.write(method.response_serializer(response))

    async def dispatch(self, path: str, request: bytes, context: CallContext) -> bytes:
        """A single call."""
        method = self._method(path, context.invocation_metadata())
        if method.request_deserializer is None:
            await method.stream_stream(None, context)
        response = await method.unary_unary(method.request_deserializer(request), context)
        data: bytes = method.response_serializer(response)
        return data

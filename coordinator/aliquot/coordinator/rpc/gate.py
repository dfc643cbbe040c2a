"""What a coordinator answers while it does not lead: to every call, who does.

The gate stands before all services of a server whose port is open all the time, so that nobody has to be told twice
where the coordinators are. Launchers find the leader's address in the error's metadata, agents in the trailers.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from aliquot.coordinator.rpc.calls import Context
from aliquot.coordinator.rpc.errors import DETAILS_KEY, DOMAIN

LEADER_KEY = "leader"
_PACKAGE = "/aliquot."
_RETRY_KNOWN_MS = 300
_RETRY_UNKNOWN_MS = 150
"""Nobody leads for a moment only: come back soon."""


class Gate(grpc.GenericRpcHandler):
    """Answers all calls of the contract while it is closed; lets them through to `services` while it is open."""

    def __init__(self) -> None:
        self._services: Sequence[grpc.GenericRpcHandler] = ()
        self._open = False
        self.leader = ""
        """The address to name; empty while nobody is known to lead."""
        self._refusal: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._refuse)

    @property
    def is_open(self) -> bool:
        """Whether calls reach the services."""
        return self._open

    def open(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        """We lead: these answer from now on."""
        self._services, self._open = services, True

    def close(self) -> None:
        """We do not lead, or no longer."""
        self._open = False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """See `grpc.GenericRpcHandler`."""
        if not handler_call_details.method.startswith(_PACKAGE):
            return None
        if not self._open:
            return self._refusal
        for service in self._services:
            handler: grpc.RpcMethodHandler[bytes, bytes] | None = service.service(handler_call_details)
            if handler is not None:
                return handler
        return None

    async def _refuse(self, _: object, context: Context) -> None:
        leader = self.leader
        message = f"the coordinator at {leader} leads" if leader else "no coordinator leads at the moment"
        status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message=message)
        info = error_details_pb2.ErrorInfo(reason="NOT_LEADER", domain=DOMAIN)
        if leader:
            info.metadata[LEADER_KEY] = leader
        status.details.add().Pack(info)
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(_RETRY_KNOWN_MS if leader else _RETRY_UNKNOWN_MS)
        status.details.add().Pack(retry)
        trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
        if leader:
            trailers.append((LEADER_KEY, leader))
        await context.abort(grpc.StatusCode.UNAVAILABLE, message, tuple(trailers))


class Services:
    """Takes what generated code adds to a server, for a gate to hand out."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        self.handlers = list(handlers)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As `grpc.aio.Server` has it."""
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same methods by name; the generic handlers know them."""

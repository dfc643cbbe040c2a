"""The gRPC server: bounds on messages, streams and connections; health; reflection."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from aliquot.common.channels import noticing
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_MESSAGE_BYTES
from aliquot.common.tls import OwnTls, ServerTls, require_secure, server_credentials
from aliquot.coordinator.rpc.gate import Services
from aliquot.coordinator.rpc.service import LaterService
from aliquot.coordinator.wire.calls import guarded
from aliquot.v1 import access_pb2, admin_pb2, agent_pb2, enrolment_pb2, leases_pb2, pool_pb2, supply_pb2

GRANTS = "aliquot.grants"
"""The health service name that says whether anything is granted at all."""
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
RPCS_MAX = 80_000
"""More than all that may last together: 20,000 agents, 10,000 watchers, 15,000 who wait, 20,000 who keep alive. Each of
those bounds says when to come back; this one, which is gRPC's, does not.
"""
SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.so_reuseport", 0),  # a second coordinator on this port must fail, not share it
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", 4 * MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 8_192),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a stranger who never shakes hands holds a socket no longer
    # Half-open connections are found out; callers that ping more often than this are cut off (agents: every 5 s).
    *noticing(every_ms=60_000, within_ms=20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 5),
    # Bandwidth probes are pings after data: with small messages on ten thousand connections they are half the packets.
    ("grpc.http2.bdp_probe", 0),
)
_OURS = (leases_pb2, pool_pb2, agent_pb2, admin_pb2, enrolment_pb2, access_pb2, supply_pb2)
_SERVICES = tuple(each.full_name for file in _OURS for each in file.DESCRIPTOR.services_by_name.values())


class ListenError(AliquotError):
    """The address can't be listened on."""


class Serving(Protocol):
    """A server, as a coordinator uses it."""

    def listen(self, address: str, tls: ServerTls | OwnTls | None) -> str:
        """Bind; returns the address with the real port. Raises SecurityError or ListenError."""

    async def serve(self, *, leading: bool) -> None:
        """Start answering."""

    async def set_leading(self, *, leading: bool) -> None:
        """Say whether this coordinator leads."""

    async def set_granting(self, *, granting: bool) -> None:
        """Say whether anything is granted."""

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give those under way some time, then end them."""


class Server(Serving):
    """A `grpc.aio` server with the coordinator's bounds."""

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        *,
        services: Sequence[str] = _SERVICES,
        options: Sequence[tuple[str, int]] = SERVER_OPTIONS,
    ) -> None:
        """Made on the event loop that it will run on."""
        self._services = services
        self.grpc = grpc.aio.server(options=options, maximum_concurrent_rpcs=RPCS_MAX)
        self.grpc.add_generic_rpc_handlers(tuple(handlers))
        self._health = HealthServicer()
        others: Any = Services()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, others)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection = LaterService(REFLECTION, (*services, health_name, REFLECTION))
        self.grpc.add_generic_rpc_handlers((guarded([*others.handlers, reflection]),))

    def listen(self, address: str, tls: ServerTls | OwnTls | None) -> str:
        """Bind; returns the address with the real port. Raises SecurityError or ListenError."""
        require_secure(address, tls)
        wanted = address.rpartition(":")[2]
        if wanted.isdecimal() and (len(wanted) > 5 or int(wanted) >= 1 << 16):  # gRPC would take what is left of it
            raise ListenError(f"can't listen on {address}", hint="a port is a number from 0 to 65535")
        try:
            if tls is not None:
                port = self.grpc.add_secure_port(address, server_credentials(tls))
            else:
                port = self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise ListenError(
                f"can't listen on {address}: {_why_not(address)}",
                hint="--listen takes HOST:PORT of this machine, where nobody else listens, such as 0.0.0.0:7070",
            ) from error
        if address.startswith(("unix:", "unix-abstract:")):
            return address
        return f"{address.rpartition(':')[0]}:{port}"

    async def serve(self, *, leading: bool) -> None:
        """Start answering; see `set_leading`."""
        await self.grpc.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self.set_leading(leading=leading)
        if not leading:
            await self.set_granting(granting=False)

    async def set_leading(self, *, leading: bool) -> None:
        """Tell health checks whether this coordinator leads."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._services:
            await self._health.set(name, serving if leading else not_serving)

    async def set_granting(self, *, granting: bool) -> None:
        """Say whether anything is granted."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        await self._health.set(GRANTS, serving if granting else not_serving)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give those under way some time, then end them."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace_s)


def _why_not(address: str) -> str:
    """What the system says of listening there: gRPC tells that to its log alone."""
    host, _, port = address.rpartition(":")
    if host == "unix":
        return "a socket needs a folder that is there and that this user may write to"
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trying:
                trying.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return "gRPC could not"

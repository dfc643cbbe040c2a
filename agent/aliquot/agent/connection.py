"""Connects to a coordinator: the gRPC channel, and the streaming call of one session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import msgspec

from aliquot.agent.disk.membership import Membership
from aliquot.common.channels import noticing, proxies
from aliquot.common.errors import AliquotError, SecurityError
from aliquot.common.failures import LEADER, failure_of
from aliquot.common.limits import MAX_MESSAGE_BYTES
from aliquot.common.reaching import CONNECT_TIMEOUT_S, reach
from aliquot.common.tls import ClientTls, channel_credentials, is_local_address
from aliquot.v1 import agent_pb2, agent_pb2_grpc

CHANNEL_OPTIONS = (
    # A coordinator that is frozen is left before its successor gives this node up.
    *noticing(every_ms=5_000, within_ms=3_000),
    *proxies(),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
)

Call = grpc.aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.CoordinatorMessage]


class SessionEnded(AliquotError):
    """The connection is over. `reason` of the instance is the coordinator's stable word, where it gave one."""

    def __init__(self, message: str, *, word: str = "", leader: str = "", wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.word = word
        self.leader = leader
        self.wait_s = wait_s


class Coordinators(msgspec.Struct, frozen=True):
    """Where the coordinators are, and how to talk to them."""

    addresses: Sequence[str]
    tls: ClientTls | None = None
    """None: in the clear, within this machine."""
    member: Membership | None = None
    """What proves that this agent is of the pool."""


@contextlib.asynccontextmanager
async def open_session(address: str, coordinators: Coordinators) -> AsyncIterator[Call]:
    """A call to the coordinator at this address. Raises `SessionEnded` when nothing at all is heard of it, and
    `SecurityError` when it may not be talked to like that.
    """
    async with channel_to(address, coordinators) as channel:
        await connect(channel)
        yield agent_pb2_grpc.AgentServiceStub(channel).Session()


async def connect(channel: grpc.aio.Channel) -> None:
    """Wait until there is a connection, or certainly none; the call then says why. Raises `SessionEnded` when nothing
    at all is heard.
    """
    try:
        await reach(channel)
    except TimeoutError:
        raise SessionEnded(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None


def channel_to(address: str, coordinators: Coordinators) -> grpc.aio.Channel:
    """A channel that is as safe as it must be there. Raises `SecurityError`."""
    if coordinators.tls is not None:
        return grpc.aio.secure_channel(address, channel_credentials(coordinators.tls), options=CHANNEL_OPTIONS)
    if not is_local_address(address):
        raise SecurityError(
            f"refusing to obey {address} without TLS: anybody on the way could end jobs on this node",
            hint="let this node join: an operator's `aliquot node invite` prints the command",
        )
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


async def ending_of_call(call: Call) -> SessionEnded:
    """Why a stream ended that was not ended by us."""
    return ending_of_status(await call.code(), await call.details(), await call.trailing_metadata())


def ending_of_error(error: grpc.aio.AioRpcError) -> SessionEnded:
    """The same, of a call that raised."""
    return ending_of_status(error.code(), error.details(), error.trailing_metadata())


def ending_of_status(code: grpc.StatusCode, details: str | None, metadata: grpc.aio.Metadata | None) -> SessionEnded:
    """What a refusal says: the reason, who leads, how long to stay away."""
    said = failure_of(code, details, metadata)
    leader = said.metadata.get(LEADER, "")
    return SessionEnded(str(said), word=said.reason, leader=leader, wait_s=said.retry_after_s or 0.0)

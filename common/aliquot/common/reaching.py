"""Connecting to a coordinator over gRPC, and reading a refusal: why, who leads, how long to wait.

For processes that keep a stream to the leader open, such as agents. The SDK's calls have their own rules.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

CONNECT_TIMEOUT_S = 4.0
"""A machine that is gone or a process that is frozen does not answer: then the next coordinator is tried."""
LEADER_METADATA = "leader"
"""Trailing metadata in which a coordinator that does not lead names the one that does."""
STATUS_METADATA = "grpc-status-details-bin"
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a call ended. `reason` is the coordinator's stable word, if it gave one; `wait_s` the wait it asked for."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    leader: str = ""
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.reason or self.code.name}: {self.message}"


def refusal_of(code: grpc.StatusCode, details: str | None, trailers: Iterable[Any] | None) -> Refusal:
    """What a call's status and trailing metadata say."""
    reason, wait_s, leader = "", 0.0, ""
    for key, value in trailers or ():
        if key == LEADER_METADATA:
            leader = value if isinstance(value, str) else value.decode("utf-8", errors="replace")
        elif key == STATUS_METADATA:
            reason, wait_s = _details(value.encode() if isinstance(value, str) else value)
    return Refusal(code, details or "", reason, leader, wait_s)


async def reach(channel: grpc.aio.Channel) -> None:
    """Waits until the channel is connected or has failed; the next call then says why. Raises `TimeoutError` when there
    is no answer at all.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
            await channel.wait_for_state_change(state)


def _details(encoded: bytes) -> tuple[str, float]:
    """The stable reason in a `google.rpc.Status` and the wait it asks for; empty and zero if there is none to read."""
    reason, wait_s = "", 0.0
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    with contextlib.suppress(DecodeError):
        for detail in status_pb2.Status.FromString(encoded).details:
            if detail.Unpack(info):
                reason = str(info.reason)
            elif detail.Unpack(retry):
                wait_s = max(0.0, retry.retry_delay.ToNanoseconds() / 1e9)
    return reason, wait_s

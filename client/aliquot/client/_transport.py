"""How a transport (`_async.ports`) reports a failure.

Only the transports import grpc, so that tests can drive flows, and another way to reach a coordinator is one class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import Message

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest answer that is accepted; a page of 1,000 nodes with 16 devices each is about a tenth of it."""


@dataclass(eq=False, slots=True)
class RpcFailure(Exception):
    """An attempt that got no answer, with what the other side said about it."""

    code: str
    """The status code's name: UNAVAILABLE, NOT_FOUND, ..."""
    message: str
    address: str
    reason: str = ""
    """google.rpc.ErrorInfo.reason; empty when the answer is not from an aliquot server."""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    explanation: Message | None = None
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code} from {self.address}: {self.message}"


Clock = Callable[[], float]
"""Seconds, monotonic."""

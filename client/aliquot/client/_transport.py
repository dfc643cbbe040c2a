"""How a transport (`_async.ports`) says that it could not.

Nothing imports grpc but the transports, so that flows can be driven by a test, and a new way to reach a coordinator is
one more class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import Message

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest answer that is read; a page of 1,000 nodes with 16 devices each is about a tenth of it."""


@dataclass(eq=False, slots=True)
class RpcFailure(Exception):
    """An attempt that did not end in an answer, with what the other side said about it."""

    code: str
    """The status code's name: UNAVAILABLE, NOT_FOUND, ..."""
    message: str
    address: str
    reason: str = ""
    """google.rpc.ErrorInfo.reason, empty when it was not one of our servers that answered."""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    explanation: Message | None = None
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code} from {self.address}: {self.message}"


Clock = Callable[[], float]
"""Seconds, monotonic."""

"""The one seam to the network: what a transport does, and how it says that it could not.

Nothing above this module imports grpc except the two transports, so that flows can be driven by a test, and a new way
to reach a coordinator is one more class here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from aliquot.client._methods import Answer, Method, Request

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_co = TypeVar("Received_co", covariant=True)

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


class ServerStream(Protocol[Received_co]):
    """Answers of a call that goes on. Raises `RpcFailure` when it breaks; ends when the server ends it well."""

    def __iter__(self) -> Iterator[Received_co]: ...

    def cancel(self) -> None:
        """End it from any thread; the iteration raises `RpcFailure` with code CANCELLED."""


class Transport(Protocol):
    """Sends messages and blocks for the answer."""

    def unary(self, method: Method[Request, Answer], request: Request, address: str, timeout_s: float) -> Answer:
        """Send one message. Raises `RpcFailure`."""

    def watch(self, method: Method[Request, Answer], request: Request, address: str) -> ServerStream[Answer]:
        """Send one message, receive many."""

    def exchange(
        self, method: Method[Request, Answer], requests: Iterable[Request], address: str
    ) -> ServerStream[Answer]:
        """Send many, receive many; `requests` is consumed in another thread."""

    def close(self) -> None:
        """Drop all connections."""


class AsyncServerStream(Protocol[Received_co]):
    """Answers of a call that goes on, for asyncio."""

    def __aiter__(self) -> AsyncIterator[Received_co]: ...

    def cancel(self) -> None: ...


class AsyncExchange(Protocol[Sent_contra, Received_co]):
    """Both directions of a call, for asyncio."""

    async def send(self, request: Sent_contra) -> None:
        """Raises `RpcFailure`."""

    async def receive(self) -> Received_co | None:
        """The next answer; None when the server ended the call well. Raises `RpcFailure`."""

    def cancel(self) -> None: ...


class AsyncTransport(Protocol):
    """Sends messages without blocking the event loop."""

    async def unary(self, method: Method[Request, Answer], request: Request, address: str, timeout_s: float) -> Answer:
        """Send one message. Raises `RpcFailure`."""

    def watch(self, method: Method[Request, Answer], request: Request, address: str) -> AsyncServerStream[Answer]:
        """Send one message, receive many."""

    def exchange(self, method: Method[Request, Answer], address: str) -> AsyncExchange[Request, Answer]:
        """Send many, receive many."""

    async def close(self) -> None:
        """Drop all connections."""


Clock = Callable[[], float]
"""Seconds, monotonic."""

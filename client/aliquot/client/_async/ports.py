"""The interface of transports, the only way to the network. Failures are raised as `RpcFailure`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from aliquot.client._methods import Answer, Method, Request

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_co = TypeVar("Received_co", covariant=True)


class AsyncServerStream(Protocol[Received_co]):
    """The answers of a streaming call. Raises `RpcFailure` when it breaks; ends when the server ends it normally."""

    def __aiter__(self) -> AsyncIterator[Received_co]: ...

    def cancel(self) -> None:
        """End it, from anywhere; the iteration raises `RpcFailure` with code CANCELLED."""


class AsyncExchange(Protocol[Sent_contra, Received_co]):
    """Both directions of a call: every message has one answer."""

    async def send(self, request: Sent_contra) -> None:
        """Send one message. Raises `RpcFailure`."""

    async def receive(self, timeout_s: float) -> Received_co | None:
        """The next answer; None when the server ended the call normally. Raises `RpcFailure`, `TimeoutError`."""

    def cancel(self) -> None:
        """End it, from anywhere."""


class AsyncTransport(Protocol):
    """Sends messages to coordinators."""

    async def unary(self, method: Method[Request, Answer], request: Request, address: str, timeout_s: float) -> Answer:
        """Send one message. Raises `RpcFailure`."""

    def watch(self, method: Method[Request, Answer], request: Request, address: str) -> AsyncServerStream[Answer]:
        """Send one message, receive many."""

    def exchange(self, method: Method[Request, Answer], address: str) -> AsyncExchange[Request, Answer]:
        """Send many, receive many."""

    async def close(self) -> None:
        """Drop all connections."""

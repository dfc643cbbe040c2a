# Written by tools/unasync.py from client/aliquot/client/_async/ports.py. Change that, then `make sync`.
"""The interface of transports, the only way to the network. Failures are raised as `RpcFailure`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from aliquot.client._methods import Answer, Method, Request

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received_co = TypeVar("Received_co", covariant=True)


class ServerStream(Protocol[Received_co]):
    """The answers of a streaming call. Raises `RpcFailure` when it breaks; ends when the server ends it normally."""

    def __iter__(self) -> Iterator[Received_co]: ...

    def cancel(self) -> None:
        """End it, from anywhere; the iteration raises `RpcFailure` with code CANCELLED."""


class Exchange(Protocol[Sent_contra, Received_co]):
    """Both directions of a call: every message has one answer."""

    def send(self, request: Sent_contra) -> None:
        """Send one message. Raises `RpcFailure`."""

    def receive(self, timeout_s: float) -> Received_co | None:
        """The next answer; None when the server ended the call normally. Raises `RpcFailure`, `TimeoutError`."""

    def cancel(self) -> None:
        """End it, from anywhere."""


class Transport(Protocol):
    """Sends messages to coordinators."""

    def unary(self, method: Method[Request, Answer], request: Request, address: str, timeout_s: float) -> Answer:
        """Send one message. Raises `RpcFailure`."""

    def watch(self, method: Method[Request, Answer], request: Request, address: str) -> ServerStream[Answer]:
        """Send one message, receive many."""

    def exchange(self, method: Method[Request, Answer], address: str) -> Exchange[Request, Answer]:
        """Send many, receive many."""

    def close(self) -> None:
        """Drop all connections."""

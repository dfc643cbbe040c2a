"""An error of grpc, of either stack, as an `RpcFailure`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import grpc

from aliquot.common.failures import RpcFailure, failure_of


class StatusBearer(Protocol):
    """What `grpc.RpcError`s of the sync and the asyncio stack have in common."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...


def to_failure(error: StatusBearer, trailing: Iterable[Any] | None, address: str) -> RpcFailure:
    """Describe it."""
    return failure_of(error.code(), error.details(), trailing, address)


def unanswered(failure: RpcFailure, *, closed: bool) -> RpcFailure:
    """A server that goes away ends unanswered calls with CANCELLED: this becomes UNAVAILABLE.

    CANCELLED because this side closed the channel (`closed`) stays as it is.
    """
    if failure.code == "CANCELLED" and not closed:
        failure.code = "UNAVAILABLE"
    return failure

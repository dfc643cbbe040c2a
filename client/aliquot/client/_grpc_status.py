"""Reads a gRPC error: the status, and the google.rpc details that aliquot's servers attach to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from aliquot.client._transport import RpcFailure
from aliquot.v1 import types_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class StatusBearer(Protocol):
    """What `grpc.RpcError`s of the sync and the asyncio stack have in common."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...


def to_failure(error: StatusBearer, trailing: Iterable[Any] | None, address: str) -> RpcFailure:
    """Describe an error of grpc as an `RpcFailure`."""
    code = error.code()
    failure = RpcFailure(code=code.name, message=error.details() or code.name, address=address)
    for key, value in trailing or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            _read_details(value, failure)
    return failure


def unanswered(failure: RpcFailure, *, closed: bool) -> RpcFailure:
    """A server that goes away ends unanswered calls with CANCELLED: this becomes UNAVAILABLE.

    CANCELLED because this side closed the channel (`closed`) stays as it is.
    """
    if failure.code == "CANCELLED" and not closed:
        failure.code = "UNAVAILABLE"
    return failure


def read_status(status: status_pb2.Status, address: str) -> RpcFailure:
    """Describe one item's failure inside the answer of a batch."""
    failure = RpcFailure(code=_code_name(status.code), message=status.message, address=address)
    _read_details(status.SerializeToString(), failure)
    return failure


def _read_details(raw: bytes, failure: RpcFailure) -> None:
    try:
        status = status_pb2.Status.FromString(raw)
    except DecodeError:
        # From a proxy or another server: the code and message are still right.
        return
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        bad = error_details_pb2.BadRequest()
        quota = error_details_pb2.QuotaFailure()
        explanation = types_pb2.Explanation()
        help_ = error_details_pb2.Help()
        if detail.Unpack(info):
            failure.reason = info.reason
            failure.metadata = dict(info.metadata)
            failure.hint = failure.hint or info.metadata.get("hint", "")
        elif detail.Unpack(retry):
            failure.retry_after_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Unpack(bad):
            failure.violations += tuple((v.field, v.description) for v in bad.field_violations)
        elif detail.Unpack(quota):
            failure.violations += tuple((v.subject, v.description) for v in quota.violations)
        elif detail.Unpack(explanation):
            failure.explanation = explanation
        elif detail.Unpack(help_) and help_.links:
            failure.hint = failure.hint or help_.links[0].description


def _code_name(number: int) -> str:
    for code in grpc.StatusCode:
        if code.value[0] == number:
            return code.name
    return grpc.StatusCode.UNKNOWN.name

"""A gRPC call that failed, and what the server said of it: the status, and the google.rpc details that ours attach."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from aliquot.v1 import types_pb2

LEADER = "leader"
"""In the metadata of a refusal by a coordinator that does not lead: who does."""
_STATUS = "grpc-status-details-bin"


@dataclass(eq=False, slots=True)
class RpcFailure(Exception):
    """An attempt that got no answer, with what the other side said about it."""

    code: str
    """The status code's name: UNAVAILABLE, NOT_FOUND, ..."""
    message: str
    address: str = ""
    reason: str = ""
    """google.rpc.ErrorInfo.reason; empty when the answer is not from an aliquot server."""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    violations: tuple[tuple[str, str], ...] = ()
    explanation: Message | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = f" from {self.address}" if self.address else ""
        return f"{self.reason or self.code}{where}: {self.message}"


def failure_of(
    code: grpc.StatusCode, details: str | None, trailing: Iterable[Any] | None, address: str = ""
) -> RpcFailure:
    """What a call's status and trailing metadata say."""
    failure = RpcFailure(code.name, details or code.name, address)
    for key, value in trailing or ():
        if key == _STATUS and isinstance(value, bytes):
            _read_details(value, failure)
        elif key == LEADER and isinstance(value, str):
            failure.metadata.setdefault(LEADER, value)
    return failure


def failure_in(status: status_pb2.Status, address: str) -> RpcFailure:
    """The failure of one item inside the answer of a batch."""
    known = (code.name for code in grpc.StatusCode if code.value[0] == status.code)
    failure = RpcFailure(next(known, grpc.StatusCode.UNKNOWN.name), status.message, address)
    _read_details(status.SerializeToString(), failure)
    return failure


def _read_details(raw: bytes, failure: RpcFailure) -> None:
    # From a proxy or another server: the code and message are still right.
    with suppress(DecodeError):
        for detail in status_pb2.Status.FromString(raw).details:
            _read_detail(detail, failure)


def _read_detail(detail: any_pb2.Any, failure: RpcFailure) -> None:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad = error_details_pb2.BadRequest()
    quota = error_details_pb2.QuotaFailure()
    explanation = types_pb2.Explanation()
    help_ = error_details_pb2.Help()
    if detail.Unpack(info):
        failure.reason = info.reason
        failure.metadata = {**failure.metadata, **info.metadata}
        failure.hint = failure.hint or info.metadata.get("hint", "")
    elif detail.Unpack(retry):
        failure.retry_after_s = max(0.0, retry.retry_delay.ToNanoseconds() / 1e9)
    elif detail.Unpack(bad):
        failure.violations += tuple((v.field, v.description) for v in bad.field_violations)
    elif detail.Unpack(quota):
        failure.violations += tuple((v.subject, v.description) for v in quota.violations)
    elif detail.Unpack(explanation):
        failure.explanation = explanation
    elif detail.Unpack(help_) and help_.links:
        failure.hint = failure.hint or help_.links[0].description

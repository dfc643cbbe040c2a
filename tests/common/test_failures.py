"""What a server says of a call that failed, whatever it says."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.failures import LEADER, RpcFailure, failure_of
from aliquot.v1 import types_pb2


def said(*details: any_pb2.Any) -> RpcFailure:
    status = status_pb2.Status(code=14, message="away", details=details)
    trailing = (("grpc-status-details-bin", status.SerializeToString()), (LEADER, "127.0.0.1:7"))
    return failure_of(grpc.StatusCode.UNAVAILABLE, "away", trailing)


@pytest.mark.parametrize(
    "kind",
    [
        error_details_pb2.ErrorInfo,
        error_details_pb2.RetryInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.QuotaFailure,
        error_details_pb2.Help,
        types_pb2.Explanation,
    ],
)
def test_a_detail_that_can_t_be_read_hides_nothing_else(kind: type[types_pb2.Explanation]) -> None:
    damaged = any_pb2.Any()
    damaged.Pack(kind())
    damaged.value = b"\xff\xff"
    first = any_pb2.Any()
    first.Pack(error_details_pb2.ErrorInfo(reason="NOT_LEADER"))
    failure = said(first, damaged)
    assert (failure.code, failure.message, failure.reason) == ("UNAVAILABLE", "away", "NOT_LEADER")
    assert failure.metadata == {LEADER: "127.0.0.1:7"}


def test_details_that_are_no_status_are_left_alone() -> None:
    failure = failure_of(grpc.StatusCode.INTERNAL, None, (("grpc-status-details-bin", b"\xff"),))
    assert (str(failure), failure.reason) == ("INTERNAL: INTERNAL", "")

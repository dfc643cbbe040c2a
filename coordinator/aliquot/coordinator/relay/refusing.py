"""What a relay itself says to agents that it can't serve, in the coordinator's words: agents know what to do then."""

from __future__ import annotations

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.reaching import STATUS_METADATA
from aliquot.coordinator.relay.mux import Ending

DOMAIN = "aliquot.dev"
_AGENTS_PER_S = 1_000
"""At which a new leader, or another relay, is to get agents back."""
_RETRY_LEAST_MS = 300


def refusal(code: grpc.StatusCode, reason: str, message: str, retry_ms: int) -> Ending:
    """An end with a stable reason and the time after which to come back."""
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(retry_ms)
    details: tuple[Message, ...] = (error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN), retry)
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return Ending(code, message, ((STATUS_METADATA, status.SerializeToString()),))


def overloaded(message: str, retry_ms: int) -> Ending:
    """A bound is reached."""
    return refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", message, retry_ms)


def no_leader(agents: int) -> Ending:
    """The coordinator is gone for the moment. So many agents are told at once: they come back one after the other."""
    retry_ms = max(_RETRY_LEAST_MS, 1000 * agents // _AGENTS_PER_S)
    return refusal(
        grpc.StatusCode.UNAVAILABLE,
        "NOT_LEADER",
        "this relay reaches no coordinator that leads at the moment",
        retry_ms,
    )


def leaving(retry_ms: int) -> Ending:
    """This relay stops."""
    return refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", "this relay is shutting down", retry_ms)

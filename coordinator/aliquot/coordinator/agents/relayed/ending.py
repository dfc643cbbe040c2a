"""How a stream within a stream ends: as gRPC would say it, with the details that agents understand."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.reaching import STATUS_METADATA
from aliquot.v1 import relay_pb2

DOMAIN = "aliquot.dev"
_TRAILERS_MAX = 16

Trailers = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended, as gRPC would say it."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    trailers: Trailers = ()

    def write(self, ended: relay_pb2.StreamEnded) -> None:
        """Into a message."""
        ended.code, ended.message = self.code.value[0], self.message
        for key, value in self.trailers[:_TRAILERS_MAX]:
            ended.trailers.add(key=key, value=value.encode() if isinstance(value, str) else value)

    @classmethod
    def read(cls, ended: relay_pb2.StreamEnded) -> Ending:
        """From a message."""
        code = next((code for code in grpc.StatusCode if code.value[0] == ended.code), grpc.StatusCode.UNKNOWN)
        trailers = tuple(
            (each.key, each.value if each.key.endswith("-bin") else each.value.decode(errors="replace"))
            for each in ended.trailers[:_TRAILERS_MAX]
        )
        return cls(code, ended.message, trailers)


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

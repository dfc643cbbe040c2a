"""Turns a server's failure into the typed error that tells the user what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aliquot.client import _errors as errors
from aliquot.client._messages import read
from aliquot.client._methods import Method
from aliquot.client._values.leases import Explanation
from aliquot.common.failures import RpcFailure
from aliquot.v1 import types_pb2


def _with_reasons(kind: type[errors.PoolError]) -> Iterator[tuple[str, type[errors.PoolError]]]:
    """This class and those below it that have a word of their own, by it."""
    if "reason" in vars(kind):
        yield kind.reason, kind
    for narrower in kind.__subclasses__():
        yield from _with_reasons(narrower)


_BY_REASON: dict[str, type[errors.PoolError]] = dict(_with_reasons(errors.PoolError)) | {
    "MESSAGE_TOO_LARGE": errors.InvalidRequest,
    "LEASE_EXPIRED": errors.LeaseLost,
    "DEVICE_CLAIMED": errors.NameTaken,
    "MAINTENANCE_EXISTS": errors.NameTaken,
    "CARD_IN_USE": errors.InUse,
    "TENANT_IN_USE": errors.InUse,
    "QUEUE_IN_USE": errors.InUse,
    "NOT_ALLOWED": errors.Refused,
    "NOT_ENROLLED": errors.Refused,
    "WRONG_KEY": errors.Refused,
    "INVITE_UNKNOWN": errors.Refused,
    "INVITE_EXPIRED": errors.Refused,
    "INVITE_USED": errors.Refused,
    "INVITE_FOR_ANOTHER_NODE": errors.Refused,
}
"""Reasons that say more than the status code does: each class has one, these have none of their own."""
NOT_SERVED = "NOT_SERVED"
"""The coordinator is older than this client."""
# For all other reasons, and for failures without one: from a proxy, a newer server, grpc itself.
_BY_CODE: dict[str, type[errors.PoolError]] = {
    "INVALID_ARGUMENT": errors.InvalidRequest,
    "FAILED_PRECONDITION": errors.Refused,
    "RESOURCE_EXHAUSTED": errors.Overloaded,
    "NOT_FOUND": errors.NotFound,
    "ALREADY_EXISTS": errors.Conflict,
    "ABORTED": errors.Conflict,
    "UNAVAILABLE": errors.Unavailable,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "OUT_OF_RANGE": errors.WatchCompacted,
    "UNIMPLEMENTED": errors.Refused,
    "PERMISSION_DENIED": errors.NotPermitted,
    "UNAUTHENTICATED": errors.NotLoggedIn,
}


def to_error(
    failure: RpcFailure, method: Method[Any, Any], addresses: Sequence[str], timeout_s: float
) -> errors.PoolError:
    """Make the typed error of a failed call."""
    kind = _BY_REASON.get(failure.reason) or _BY_CODE.get(failure.code, errors.InternalError)
    message, hint = failure.message, failure.hint
    if not failure.reason:
        message, hint = _describe_foreign(failure, method, addresses, timeout_s)
    if issubclass(kind, errors.LeaseLost):
        return errors.LeaseLost(
            message, hint=hint, reason=failure.reason, end_reason=failure.metadata.get("end_reason", "")
        )
    explanation = failure.explanation
    return kind(
        message,
        hint=hint,
        reason=failure.reason or (NOT_SERVED if failure.code == "UNIMPLEMENTED" else ""),
        metadata=failure.metadata,
        explanation=read(explanation, Explanation) if isinstance(explanation, types_pb2.Explanation) else None,
        violations=[errors.Violation(subject, description) for subject, description in failure.violations],
        retry_after_s=failure.retry_after_s,
    )


_START = "start a local pool with `aliquot up`, or name the coordinator: --coordinator or ALIQUOT_COORDINATOR"
_MET = (
    (
        "HTTP proxy returned",
        "the proxy that grpc_proxy names lets nobody through to it",
        "unset grpc_proxy, or name the coordinator in no_proxy",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "what listens there speaks no TLS, and TLS was asked for",
        "is it the right port? A coordinator in the clear needs no ca_file; its metrics port (7071) is another",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is signed by nobody who is trusted here",
        "name the pool's authority: ALIQUOT_CLIENT_TLS_CA_FILE; `aliquot login` with the pool's connection string does",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate is for another name",
        "reach it by a name that its certificate has: `openssl x509 -noout -ext subjectAltName` shows them",
    ),
    (
        "Failed parsing HTTP/2",
        "what listens there is a web server, no coordinator",
        "the coordinator's port is 7070 unless it was told another; 7071 is its metrics', 7074 the console's",
    ),
    (
        "Socket closed",
        "what listens there closes the connection: it may want TLS",
        "name the pool's authority (ALIQUOT_CLIENT_TLS_CA_FILE), or log in with the pool's connection string",
    ),
    *(
        (words, "this machine does not know that name", "check its spelling, or write the address in digits")
        for words in ("errors resolving", "DNS resolution failed")  # the second: grpcio before 1.80
    ),
)
"""What was met where something answers that is no coordinator, or not as it was spoken to: by words of gRPC's error."""


def _describe_foreign(
    failure: RpcFailure, method: Method[Any, Any], addresses: Sequence[str], timeout_s: float
) -> tuple[str, str]:
    """Describes failures that don't come from a coordinator: not running, no answer, or another server."""
    where = " or ".join(addresses)
    if failure.code == "UNAVAILABLE":
        for sign, met, hint in _MET:
            if sign in failure.message:
                return f"{failure.address}: {met}", hint
        return f"no coordinator answers at {where} ({_cause(failure.message)})", _START
    if failure.code == "DEADLINE_EXCEEDED":
        return (
            f"{method.name} was not answered by {where} within {timeout_s:g} s",
            "it is safe to try again; a longer timeout may help where the pool is busy",
        )
    if failure.code == "UNIMPLEMENTED":
        return (
            f"what listens at {failure.address} doesn't know {method.name}",
            "the coordinator is older than this client, or something else listens there",
        )
    return f"{method.name}: {failure.code}: {failure.message}", failure.hint


def _cause(message: str) -> str:
    """The useful part of grpc's long connection message: `Connection refused (111)`."""
    return message.rpartition(": ")[2] if message.startswith("failed to connect") else message

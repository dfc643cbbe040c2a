"""The one place where errors become gRPC statuses: codes as `errors.proto` lists them, with google.rpc details.

Every error carries an ErrorInfo with a stable reason and, where there is one, the hint in its metadata. Wrong
fields add a BadRequest with their paths, "come back later" adds a RetryInfo, and a demand that does not fit adds
the Explanation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.errors import AliquotError, InvalidFieldError, RequestSyntaxError
from aliquot.coordinator.core.values.errors import (
    ExtensionRefused,
    InvalidField,
    NeverFits,
    NoCapacity,
    PlacementRefused,
    QuotaExceeded,
    TenantHeldBack,
)
from aliquot.coordinator.core.values.types import Shortfall
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.wire.leases import explanation_of_shortfall

log = logging.getLogger(__name__)

DOMAIN = "aliquot.dev"
DETAILS_KEY = "grpc-status-details-bin"
Code = grpc.StatusCode

_REASONS = {
    Code.INVALID_ARGUMENT: "REQUEST_SYNTAX INVALID_FIELD",
    Code.RESOURCE_EXHAUSTED: "MESSAGE_TOO_LARGE NO_CAPACITY QUEUE_FULL QUOTA_EXCEEDED OVERLOADED",
    Code.FAILED_PRECONDITION: (
        "NEVER_FITS TIER_UNAVAILABLE LEASE_ENDED LEASE_EXPIRED CARD_IN_USE STILL_UNWELL NODE_IN_USE "
        "PROTOCOL_VERSION TENANT_IN_USE QUEUE_IN_USE PERIOD_CLOSED PLACEMENT_REFUSED EXTENSION_REFUSED "
        "TENANT_HELD_BACK LAST_ADMINISTRATOR AUTHORITY_IN_USE AUTHORITY_UNCHANGED LOGIN_NOT_OFFERED "
        "PROVIDER_UNAVAILABLE"
    ),
    Code.ALREADY_EXISTS: "IDEMPOTENCY_MISMATCH NODE_NAME_TAKEN DEVICE_CLAIMED MAINTENANCE_EXISTS",
    Code.NOT_FOUND: (
        "LEASE_NOT_FOUND NODE_NOT_FOUND MAINTENANCE_NOT_FOUND DEVICE_NOT_FOUND INCIDENT_NOT_FOUND "
        "TENANT_NOT_FOUND QUEUE_NOT_FOUND TOKEN_NOT_FOUND ORDER_NOT_FOUND"
    ),
    Code.UNAVAILABLE: "NOT_LEADER JOURNAL_UNAVAILABLE JOURNAL_CORRUPT SHUTTING_DOWN ROLES_CHANGED",
    Code.OUT_OF_RANGE: "WATCH_COMPACTED",
    Code.ABORTED: "CONFLICT SESSION_REPLACED ORDER_TAKEN",
    Code.PERMISSION_DENIED: (
        "NOT_ALLOWED ROLE_MISSING NOT_ENROLLED WRONG_KEY INVITE_USED INVITE_FOR_ANOTHER_NODE LOGIN_RULE_MISSING"
    ),
    Code.UNAUTHENTICATED: (
        "TOKEN_MISSING TOKEN_UNKNOWN TOKEN_EXPIRED TOKEN_REVOKED INVITE_UNKNOWN INVITE_EXPIRED LOGIN_REFUSED"
    ),
}
"""What each code is sent for: the stable reasons, as errors name them."""
_CODES = {reason: code for code, reasons in _REASONS.items() for reason in reasons.split()}
_PUBLIC_REASON = {"JOURNAL_CORRUPT": "JOURNAL_UNAVAILABLE"}
in_turn: ContextVar[Callable[[str, int], Awaitable[bool]]] = ContextVar("in_turn")
"""Set by the door for each call: see `turn_away`."""
_RETRY_AFTER_MS = {
    "QUEUE_FULL": 5_000,
    "JOURNAL_UNAVAILABLE": 1_000,
    "JOURNAL_CORRUPT": 10_000,
    "OVERLOADED": 500,
    "SHUTTING_DOWN": 1_000,
    "NOT_LEADER": 1_000,
    "ROLES_CHANGED": 100,
}


class NotDecodedError(InvalidFieldError):
    """What was sent is no message. `kept_bytes` of it are kept until its sender is told."""

    def __init__(self, why: str, kept_bytes: int) -> None:
        hint = "send less at once; or look for a proxy that changes messages, or another protocol"
        super().__init__("message", f"is not decoded: {why}", hint=hint)
        self.kept_bytes = kept_bytes


def reason_of(error: BaseException) -> str:
    """The stable reason, as metrics and clients see it."""
    if not isinstance(error, AliquotError):
        return "INTERNAL"
    if isinstance(error, NeverFits) and any(missing.reason == "TIER" for missing in error.shortfall.missing):
        return "TIER_UNAVAILABLE"
    reason = _PUBLIC_REASON.get(error.reason, error.reason)
    return reason if reason in _CODES else "INVALID_FIELD" if isinstance(error, ValueError) else "INTERNAL"


def status_of(error: BaseException) -> status_pb2.Status:
    """The whole status of an error, as batches return it per item."""
    reason = reason_of(error)
    code = _CODES.get(reason, Code.INTERNAL)
    if not isinstance(error, AliquotError):
        log.error("a defect while answering a call", exc_info=error)
        message = "a defect of the coordinator; please report it with the coordinator's log"
    else:
        message = error.message
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in _details(error, reason):
        status.details.add().Pack(detail)
    return status


async def abort(context: grpc.aio.ServicerContext, error: BaseException) -> NoReturn:  # type: ignore[type-arg]
    """End a call with an error."""
    if isinstance(error, NotDecodedError):
        await turn_away(context, error.kept_bytes)
    status = status_of(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort has returned")


async def turn_away(context: grpc.aio.ServicerContext, kept_bytes: int = 0) -> bool:  # type: ignore[type-arg]
    """To be waited for before a call is refused that could do nothing, so that who sends many of them is told one after
    the other. Answers with whether its sender did.
    """
    wait = in_turn.get(None)
    return wait is not None and await wait(context.peer(), kept_bytes)


def _details(error: BaseException, reason: str) -> Iterator[Message]:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    if isinstance(error, AliquotError) and error.hint:
        info.metadata["hint"] = error.hint
    if isinstance(error, PlacementRefused):
        info.metadata["node"], info.metadata["obstacle"] = error.node, error.obstacle
    if isinstance(error, TenantHeldBack | ExtensionRefused):
        info.metadata["until_ms"] = str(error.until_ms)
    yield info
    violation = _violation(error)
    if violation is not None:
        field, description = violation
        yield error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=field, description=description, reason=reason)
            ]
        )
    if isinstance(error, QuotaExceeded):
        yield error_details_pb2.QuotaFailure(
            violations=[error_details_pb2.QuotaFailure.Violation(subject=error.subject, description=error.message)]
        )
    retry_after_ms = error.retry_after_ms if isinstance(error, Overloaded) else _RETRY_AFTER_MS.get(reason, 0)
    if retry_after_ms:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_after_ms)
        yield retry
    shortfall: Shortfall | None = getattr(error, "shortfall", None)
    if isinstance(error, (NeverFits, NoCapacity)) and shortfall is not None:
        yield explanation_of_shortfall(shortfall)


def _violation(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, (InvalidField, InvalidFieldError)):
        return error.field, error.message
    if isinstance(error, RequestSyntaxError):
        return "request.gpu", error.message
    return None

"""The one place where errors become gRPC statuses: codes as `errors.proto` lists them, with google.rpc details.

Every error carries an ErrorInfo with a stable reason and, where there is one, the hint in its metadata. Wrong
fields add a BadRequest with their paths, "come back later" adds a RetryInfo, and a demand that does not fit adds
the Explanation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
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

_CODES: dict[str, grpc.StatusCode] = {
    "REQUEST_SYNTAX": Code.INVALID_ARGUMENT,
    "INVALID_FIELD": Code.INVALID_ARGUMENT,
    "MESSAGE_TOO_LARGE": Code.RESOURCE_EXHAUSTED,
    "NEVER_FITS": Code.FAILED_PRECONDITION,
    "NO_CAPACITY": Code.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": Code.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": Code.RESOURCE_EXHAUSTED,
    "TIER_UNAVAILABLE": Code.FAILED_PRECONDITION,
    "IDEMPOTENCY_MISMATCH": Code.ALREADY_EXISTS,
    "LEASE_NOT_FOUND": Code.NOT_FOUND,
    "LEASE_ENDED": Code.FAILED_PRECONDITION,
    "LEASE_EXPIRED": Code.FAILED_PRECONDITION,
    "NODE_NOT_FOUND": Code.NOT_FOUND,
    "NODE_NAME_TAKEN": Code.ALREADY_EXISTS,
    "DEVICE_CLAIMED": Code.ALREADY_EXISTS,
    "MAINTENANCE_EXISTS": Code.ALREADY_EXISTS,
    "MAINTENANCE_NOT_FOUND": Code.NOT_FOUND,
    "DEVICE_NOT_FOUND": Code.NOT_FOUND,
    "INCIDENT_NOT_FOUND": Code.NOT_FOUND,
    "CARD_IN_USE": Code.FAILED_PRECONDITION,
    "STILL_UNWELL": Code.FAILED_PRECONDITION,
    "NODE_IN_USE": Code.FAILED_PRECONDITION,
    "PROTOCOL_VERSION": Code.FAILED_PRECONDITION,
    "NOT_LEADER": Code.UNAVAILABLE,
    "JOURNAL_UNAVAILABLE": Code.UNAVAILABLE,
    "JOURNAL_CORRUPT": Code.UNAVAILABLE,
    "OVERLOADED": Code.RESOURCE_EXHAUSTED,
    "WATCH_COMPACTED": Code.OUT_OF_RANGE,
    "CONFLICT": Code.ABORTED,
    "TENANT_NOT_FOUND": Code.NOT_FOUND,
    "TENANT_IN_USE": Code.FAILED_PRECONDITION,
    "QUEUE_NOT_FOUND": Code.NOT_FOUND,
    "QUEUE_IN_USE": Code.FAILED_PRECONDITION,
    "PERIOD_CLOSED": Code.FAILED_PRECONDITION,
    "SESSION_REPLACED": Code.ABORTED,
    "SHUTTING_DOWN": Code.UNAVAILABLE,
    "PLACEMENT_REFUSED": Code.FAILED_PRECONDITION,
    "EXTENSION_REFUSED": Code.FAILED_PRECONDITION,
    "TENANT_HELD_BACK": Code.FAILED_PRECONDITION,
    "NOT_ALLOWED": Code.PERMISSION_DENIED,
    "TOKEN_MISSING": Code.UNAUTHENTICATED,
    "TOKEN_UNKNOWN": Code.UNAUTHENTICATED,
    "TOKEN_EXPIRED": Code.UNAUTHENTICATED,
    "TOKEN_REVOKED": Code.UNAUTHENTICATED,
    "TOKEN_NOT_FOUND": Code.NOT_FOUND,
    "ROLE_MISSING": Code.PERMISSION_DENIED,
    "ROLES_CHANGED": Code.UNAVAILABLE,
    "LAST_ADMINISTRATOR": Code.FAILED_PRECONDITION,
    "NOT_ENROLLED": Code.PERMISSION_DENIED,
    "WRONG_KEY": Code.PERMISSION_DENIED,
    "INVITE_UNKNOWN": Code.UNAUTHENTICATED,
    "INVITE_USED": Code.PERMISSION_DENIED,
    "INVITE_EXPIRED": Code.UNAUTHENTICATED,
    "INVITE_FOR_ANOTHER_NODE": Code.PERMISSION_DENIED,
    "ORDER_NOT_FOUND": Code.NOT_FOUND,
    "ORDER_TAKEN": Code.ABORTED,
    "AUTHORITY_IN_USE": Code.FAILED_PRECONDITION,
    "AUTHORITY_UNCHANGED": Code.FAILED_PRECONDITION,
    "LOGIN_REFUSED": Code.UNAUTHENTICATED,
    "LOGIN_RULE_MISSING": Code.PERMISSION_DENIED,
    "LOGIN_NOT_OFFERED": Code.FAILED_PRECONDITION,
    "PROVIDER_UNAVAILABLE": Code.FAILED_PRECONDITION,
}
_PUBLIC_REASON = {"JOURNAL_CORRUPT": "JOURNAL_UNAVAILABLE"}
_RETRY_AFTER_MS = {
    "QUEUE_FULL": 5_000,
    "JOURNAL_UNAVAILABLE": 1_000,
    "JOURNAL_CORRUPT": 10_000,
    "OVERLOADED": 500,
    "SHUTTING_DOWN": 1_000,
    "NOT_LEADER": 1_000,
    "ROLES_CHANGED": 100,
}


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
    status = status_of(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort has returned")


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

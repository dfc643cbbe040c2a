"""What can go wrong between a program and the pool, as one tree. Catch the branch whose remedy you have.

::

    AliquotError                     everything this project raises on purpose (aliquot.common.errors)
     └─ PoolError                    everything this SDK raises
         ├─ Refused                  the same request would be refused again
         │   ├─ InvalidRequest           a field is out of range, a message too large          .violations
         │   ├─ NeverFits                would not fit the whole pool, were it empty           .explanation
         │   ├─ NoCapacity               fits the pool, not now, and `no_queue` was set        .explanation
         │   ├─ ExtensionRefused         others count on the lease's end                       .until_ms
         │   ├─ PlacementRefused         it can't go where the caller decided                  .obstacle
         │   ├─ NotPermitted             the caller's roles don't allow it: which would, the message says
         │   ├─ QuotaExceeded            the tenant's limit                                    .violations
         │   ├─ TenantHeldBack           leases of the tenant ended as OVER_LIMIT: not now     .until_ms
         │   └─ TierUnavailable          no device can enforce the limit that strongly         .explanation
         ├─ NotLoggedIn              no token, or one that does not count: unknown, expired, revoked  .stated_reason
         ├─ NotFound
         │   ├─ LeaseNotFound, NodeNotFound, TenantNotFound, QueueNotFound, MaintenanceNotFound, TokenNotFound
         │   ├─ DeviceNotFound, IncidentNotFound
         ├─ Conflict                 somebody else changed it first: read again, then decide
         │   ├─ IdempotencyMismatch      this key was used for another request
         │   ├─ NameTaken                a name or a device's UUID belongs to another
         │   ├─ InUse                    it still holds leases
         │   ├─ StillUnwell              a card's signs are bad
         │   └─ PeriodClosed             the books of that time are closed
         ├─ LeaseLost                the lease is no longer held                               .end_reason
         ├─ Unavailable              no coordinator answered, with retries until the deadline  .addresses
         │   └─ Overloaded               a bound is reached: queue full, too many calls        .retry_after_s
         ├─ DeadlineExceeded         the coordinator took longer than the caller's timeout
         │   └─ NotGrantedInTime         the request is valid, and was still waiting           .explanation
         ├─ WatchCompacted           old changes are no longer kept; `watch` lists everything again
         ├─ AgentError               this node's agent failed or refused
         │   ├─ AgentUnreachable         no agent listens here
         │   └─ AttachRefused            the agent refused to put the process under the lease
         └─ InternalError            a defect in aliquot; please report it

A request text that can't be read raises `RequestSyntaxError` (aliquot.common), with position and suggestion, before
anything is sent.

Every error has `message`, `hint` (what to do next), `reason` (the stable word of its class, from `errors.proto`),
`stated_reason` (the server's word, which may be more specific) and the server's `metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.common.errors import AliquotError

if TYPE_CHECKING:
    from aliquot.client._values.leases import Explanation


@dataclass(frozen=True, slots=True)
class Violation:
    """One field or quota that a request violates."""

    subject: str
    """The field's path in the message, or the quota's owner."""
    description: str


class PoolError(AliquotError):
    """Root of what the SDK raises."""

    reason = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        explanation: Explanation | None = None,
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.stated_reason = reason or self.reason
        """The server's word, which may be more specific than the class: NOT_LEADER, SHUTTING_DOWN, ..."""
        self.metadata = dict(metadata or {})
        self.explanation = explanation
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s
        self.after_unknown = False
        """Whether the call was sent before without an answer, and may have been carried out then."""


class Refused(PoolError):
    """The pool understood the request and refused it."""

    reason = "UNKNOWN"


class InvalidRequest(Refused):
    """A field is missing or out of its range; `violations` names it."""

    reason = "INVALID_FIELD"


class NeverFits(Refused):
    """The request would not fit the whole pool, were it empty. Ask for less, or for another model."""


class NoCapacity(Refused):
    """It fits the pool but not now, and `no_queue` was set. Drop `no_queue` to wait in the queue."""


class PlacementRefused(Refused):
    """It can't go where the caller decided; nothing was granted."""

    @property
    def obstacle(self) -> str:
        """The stable word of what stands against it, as in `NodeFit.reason`: SHARE_HELD, CORDONED, WITHHELD, ..."""
        return self.metadata.get("obstacle", "")


class ExtensionRefused(Refused):
    """A time limit can't become so long: its queue allows less, or others count on the lease's present end."""

    @property
    def until_ms(self) -> int:
        """The latest end that would be taken, in milliseconds since the Unix epoch; 0: not known."""
        return int(self.metadata.get("until_ms", "0"))


class NotPermitted(Refused):
    """The caller is known, but its roles don't allow this. An administrator, or the tenant's manager, can give one."""

    reason = "ROLE_MISSING"


class QuotaExceeded(Refused):
    """The tenant would hold more than its limit; `violations` has the numbers."""


class TenantHeldBack(Refused):
    """The tenant is granted nothing for now, because leases of it ended as `OVER_LIMIT`."""

    @property
    def until_ms(self) -> int:
        """When that is over, in milliseconds since the Unix epoch."""
        return int(self.metadata.get("until_ms", 0))


class TierUnavailable(Refused):
    """No device that fits can enforce the memory limit as strongly as `min_tier` demands."""


class NotLoggedIn(PoolError):
    """The coordinator does not know who calls: there is no token, or one that does not count.

    `stated_reason` tells which: TOKEN_MISSING, TOKEN_UNKNOWN, TOKEN_EXPIRED or TOKEN_REVOKED.
    """

    reason = "TOKEN_MISSING"


class NotFound(PoolError):
    """What the call names does not exist, or no longer."""

    reason = "UNKNOWN"


class LeaseNotFound(NotFound):
    """No such lease, or it ended so long ago that its record is gone."""


class NodeNotFound(NotFound):
    """No such node."""


class MaintenanceNotFound(NotFound):
    """No such maintenance window."""


class DeviceNotFound(NotFound):
    """No such device."""


class IncidentNotFound(NotFound):
    """No such incident, or it is over and was forgotten."""


class TenantNotFound(NotFound):
    """No such tenant."""


class QueueNotFound(NotFound):
    """No such queue."""


class TokenNotFound(NotFound):
    """No such token."""


class Conflict(PoolError):
    """The state is not what the call assumes. Read again, then decide."""


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, for another request. Use a fresh key."""


class NameTaken(Conflict):
    """A node's name or a device's UUID belongs to another node."""

    reason = "NODE_NAME_TAKEN"


class InUse(Conflict):
    """It still holds leases. Drain it, or release them, first."""

    reason = "NODE_IN_USE"


class StillUnwell(Conflict):
    """A card can't return into service while its signs are bad."""


class PeriodClosed(Conflict):
    """The books of that time are closed. Book the correction in the period that is open."""


class LeaseLost(PoolError):
    """The lease is no longer held: it was ended, expired or was taken back. What ran under it has been stopped."""

    reason = "LEASE_ENDED"

    def __init__(
        self, message: str, *, lease_id: str = "", end_reason: str = "", hint: str = "", reason: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason)
        self.lease_id = lease_id
        self.end_reason = end_reason
        """RELEASED, EXPIRED, TIME_LIMIT, PREEMPTED, CANCELLED, FAILED, OVER_LIMIT; empty when not known."""


class Unavailable(PoolError):
    """No coordinator answered before the deadline. Leases go on; nothing new is granted meanwhile."""


class Overloaded(Unavailable):
    """A stated bound is reached (queue, calls, message rate). Ask again after `retry_after_s`."""


class DeadlineExceeded(PoolError):
    """The answer did not come within the caller's timeout. Calls are safe to make again."""


class NotGrantedInTime(DeadlineExceeded):
    """The request is valid but was not granted in time; `explanation` says what it waited for."""


class WatchCompacted(PoolError):
    """The changes asked for are no longer kept. List again, and watch from the list's `seq`."""


class AgentError(PoolError):
    """The agent of this node could not do what was asked."""


class AgentUnreachable(AgentError):
    """No agent listens on this node's socket."""


class AttachRefused(AgentError):
    """The agent refused to put the process under the lease."""


class InternalError(PoolError):
    """A defect on the other side. Please report it with the message."""

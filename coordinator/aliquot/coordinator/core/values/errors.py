"""What the core refuses, and why. `rpc.errors` is the one place that turns these into gRPC codes and details."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.core.values.types import Shortfall


class DomainError(AliquotError):
    """Root of what the core refuses."""


class InvalidField(DomainError, InvalidFieldError):
    """A field of a request is out of its range. `field` is its path in the message."""


@contextmanager
def fields_refused() -> Iterator[None]:
    """Within it, a value that is out of its range for everybody is one that the core refuses."""
    try:
        yield
    except InvalidFieldError as error:
        raise InvalidField(error.field, error.message.removeprefix(f"{error.field}: "), hint=error.hint) from error


class NeverFits(DomainError):
    """The demand would not fit the whole pool, even were it empty."""

    reason = "NEVER_FITS"

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall.summary, hint="ask for less, or for another model; `aliquot nodes` shows the pool")
        self.shortfall = shortfall


class NoCapacity(DomainError):
    """The demand fits the pool but not now, and the caller does not want to queue."""

    reason = "NO_CAPACITY"

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall.summary, hint="drop `no_queue` to wait in the queue")
        self.shortfall = shortfall


class PlacementRefused(DomainError):
    """The demand can't go where somebody else has decided."""

    reason = "PLACEMENT_REFUSED"

    def __init__(self, node: str, obstacle: str, detail: str) -> None:
        super().__init__(f"node {node}: {detail}", hint="ask for another place, or leave the choice to `Allocate`")
        self.node = node
        self.obstacle = obstacle
        """A stable word: see `placement.reasons.Reason`."""


class ExtensionRefused(DomainError):
    """A time limit can't become so long: the queue's bound, or somebody counts on the lease's present end."""

    reason = "EXTENSION_REFUSED"

    def __init__(self, detail: str, until_ms: int) -> None:
        super().__init__(detail, hint="extend it by less, or ask for another lease that goes on from there")
        self.until_ms = until_ms
        """The latest end that would be taken; 0: not known, it is not granted."""


class QueueFull(DomainError):
    """The bound on queued requests is reached."""

    reason = "QUEUE_FULL"


class IdempotencyMismatch(DomainError):
    """The same idempotency key came with another body."""

    reason = "IDEMPOTENCY_MISMATCH"


class LeaseNotFound(DomainError):
    """No such lease, or it ended so long ago that its record is gone."""

    reason = "LEASE_NOT_FOUND"


def no_lease(lease_id: str) -> LeaseNotFound:
    """What to raise where there is none of this id."""
    return LeaseNotFound(
        f"there is no lease {lease_id[:64]!r}",
        hint="it may have ended more than ten minutes ago; `aliquot ls` lists those that live",
    )


class LeaseEndedError(DomainError):
    """The lease has ended or is ending."""

    reason = "LEASE_ENDED"


class NodeNotFound(DomainError):
    """No such node."""

    reason = "NODE_NOT_FOUND"


def no_node(node_id: str) -> NodeNotFound:
    """What to raise where there is none of this id or name."""
    return NodeNotFound(f"there is no node {node_id[:64]!r}", hint="`aliquot nodes` lists those there are")


class NodeNameTaken(DomainError):
    """Another node has this name."""

    reason = "NODE_NAME_TAKEN"


class DeviceClaimed(DomainError):
    """Another node has a device with this UUID."""

    reason = "DEVICE_CLAIMED"


class NodeInUse(DomainError):
    """The node, or a device that would vanish, still holds slices."""

    reason = "NODE_IN_USE"


class DeviceNotFound(DomainError):
    """No device has this UUID."""

    reason = "DEVICE_NOT_FOUND"


class IncidentUnknown(DomainError):
    """No incident has this number, or it was forgotten."""

    reason = "INCIDENT_NOT_FOUND"


class CardInUse(DomainError):
    """What is asked of a card can't be done while it is as it is."""

    reason = "CARD_IN_USE"


class StillUnwell(DomainError):
    """A card can't return into service while its signs are bad."""

    reason = "STILL_UNWELL"


class MaintenanceExists(DomainError):
    """Another maintenance window has this name."""

    reason = "MAINTENANCE_EXISTS"


class MaintenanceNotFound(DomainError):
    """No such maintenance window."""

    reason = "MAINTENANCE_NOT_FOUND"


class OrderNotFound(DomainError):
    """No open order of a node has this number."""

    reason = "ORDER_NOT_FOUND"


class OrderTaken(DomainError):
    """Somebody else carries this order out, or it is over."""

    reason = "ORDER_TAKEN"


class SessionReplaced(DomainError):
    """Another agent with the same node id has connected since."""

    reason = "SESSION_REPLACED"


class StaleLeader(DomainError):
    """A newer coordinator has taken over."""

    reason = "NOT_LEADER"


class QuotaExceeded(DomainError):
    """A limit of the tenant or of a queue forbids the request. `subject` names whose limit it is."""

    reason = "QUOTA_EXCEEDED"

    def __init__(self, subject: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.subject = subject


class TenantHeldBack(DomainError):
    """Leases of the tenant ended as `OVER_LIMIT`, and it is granted nothing until `until_ms` for that."""

    reason = "TENANT_HELD_BACK"

    def __init__(self, message: str, until_ms: int) -> None:
        super().__init__(message, hint="wait, or have an administrator end it: `aliquot forgive TENANT`")
        self.until_ms = until_ms


class Conflict(DomainError):
    """Somebody else changed it first."""

    reason = "CONFLICT"


class TenantNotFound(DomainError):
    """No such tenant, or this tenant has no access there."""

    reason = "TENANT_NOT_FOUND"


class TenantInUse(DomainError):
    """The tenant still has leases."""

    reason = "TENANT_IN_USE"


class QueueNotFound(DomainError):
    """No such queue."""

    reason = "QUEUE_NOT_FOUND"


class QueueInUse(DomainError):
    """The queue still has leases, or queues below it."""

    reason = "QUEUE_IN_USE"


class PeriodClosed(DomainError):
    """The books of this time are closed: only whole days can be told apart."""

    reason = "PERIOD_CLOSED"


class RoleMissing(DomainError):
    """The caller's roles don't allow this."""

    reason = "ROLE_MISSING"

    def __init__(self, message: str, *, principal: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.principal = principal


class LastAdministrator(DomainError):
    """Nobody would be left who may give roles on the whole pool."""

    reason = "LAST_ADMINISTRATOR"


class TokenEnded(DomainError):
    """The token of who gives a command was revoked, or has expired, before the command had its turn."""

    reason = "TOKEN_REVOKED"


class TokenNotFound(DomainError):
    """No such token, or it has ended."""

    reason = "TOKEN_NOT_FOUND"


class InviteUnknown(DomainError):
    """No such invite."""

    reason = "INVITE_UNKNOWN"


class InviteUsedUp(DomainError):
    """Another key has come with this invite."""

    reason = "INVITE_USED"


class InviteExpired(DomainError):
    """The invite's time is over."""

    reason = "INVITE_EXPIRED"


class InviteElsewhere(DomainError):
    """The invite is for another node."""

    reason = "INVITE_FOR_ANOTHER_NODE"


class AuthorityInUse(DomainError):
    """Somebody trusts no other generation of the pool's authority."""

    reason = "AUTHORITY_IN_USE"


class AuthorityUnchanged(DomainError):
    """The pool's authority is at a step of its rotation at which this can't be done."""

    reason = "AUTHORITY_UNCHANGED"


class BrokenInvariant(AssertionError):
    """The core's own state contradicts itself: a defect, never the caller's fault."""

"""What the core refuses, and why. `rpc.errors` is the one place that turns these into gRPC codes and details."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.core.values.types import Shortfall


class DomainError(AliquotError):
    """Root of what the core refuses."""

    reason = "INTERNAL"


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

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall.summary, hint="ask for less, or for another model; `aliquot nodes` shows the pool")
        self.shortfall = shortfall


class NoCapacity(DomainError):
    """The demand fits the pool but not now, and the caller does not want to queue."""

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall.summary, hint="drop `no_queue` to wait in the queue")
        self.shortfall = shortfall


class PlacementRefused(DomainError):
    """The demand can't go where somebody else has decided."""

    def __init__(self, node: str, obstacle: str, detail: str) -> None:
        super().__init__(f"node {node}: {detail}", hint="ask for another place, or leave the choice to `Allocate`")
        self.node = node
        self.obstacle = obstacle
        """A stable word: see `placement.reasons.Reason`."""


class ExtensionRefused(DomainError):
    """A time limit can't become so long: the queue's bound, or somebody counts on the lease's present end."""

    def __init__(self, detail: str, until_ms: int) -> None:
        super().__init__(detail, hint="extend it by less, or ask for another lease that goes on from there")
        self.until_ms = until_ms
        """The latest end that would be taken; 0: not known, it is not granted."""


class QueueFull(DomainError):
    """The bound on queued requests is reached."""


class IdempotencyMismatch(DomainError):
    """The same idempotency key came with another body."""


class LeaseNotFound(DomainError):
    """No such lease, or it ended so long ago that its record is gone."""


def no_lease(lease_id: str) -> LeaseNotFound:
    """What to raise where there is none of this id."""
    return LeaseNotFound(
        f"there is no lease {lease_id[:64]!r}",
        hint="it may have ended more than ten minutes ago; `aliquot ls` lists those that live",
    )


class LeaseEndedError(DomainError):
    """The lease has ended or is ending."""


class NodeNotFound(DomainError):
    """No such node."""


def no_node(node_id: str) -> NodeNotFound:
    """What to raise where there is none of this id or name."""
    return NodeNotFound(f"there is no node {node_id[:64]!r}", hint="`aliquot nodes` lists those there are")


class NodeNameTaken(DomainError):
    """Another node has this name."""


class DeviceClaimed(DomainError):
    """Another node has a device with this UUID."""


class NodeInUse(DomainError):
    """The node, or a device that would vanish, still holds slices."""


class DeviceNotFound(DomainError):
    """No device has this UUID."""


class IncidentUnknown(DomainError):
    """No incident has this number, or it was forgotten."""

    reason = "INCIDENT_NOT_FOUND"


class CardInUse(DomainError):
    """What is asked of a card can't be done while it is as it is."""


class StillUnwell(DomainError):
    """A card can't return into service while its signs are bad."""


class MaintenanceExists(DomainError):
    """Another maintenance window has this name."""


class MaintenanceNotFound(DomainError):
    """No such maintenance window."""


class OrderNotFound(DomainError):
    """No open order of a node has this number."""


class OrderTaken(DomainError):
    """Somebody else carries this order out, or it is over."""


class SessionReplaced(DomainError):
    """Another agent with the same node id has connected since."""


class StaleLeader(DomainError):
    """A newer coordinator has taken over."""

    reason = "NOT_LEADER"


class QuotaExceeded(DomainError):
    """A limit of the tenant or of a queue forbids the request. `subject` names whose limit it is."""

    def __init__(self, subject: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.subject = subject


class TenantHeldBack(DomainError):
    """Leases of the tenant ended as `OVER_LIMIT`, and it is granted nothing until `until_ms` for that."""

    def __init__(self, message: str, until_ms: int) -> None:
        super().__init__(message, hint="wait, or have an administrator end it: `aliquot forgive TENANT`")
        self.until_ms = until_ms


class Conflict(DomainError):
    """Somebody else changed it first."""


class TenantNotFound(DomainError):
    """No such tenant, or this tenant has no access there."""


class TenantInUse(DomainError):
    """The tenant still has leases."""


class QueueNotFound(DomainError):
    """No such queue."""


class QueueInUse(DomainError):
    """The queue still has leases, or queues below it."""


class PeriodClosed(DomainError):
    """The books of this time are closed: only whole days can be told apart."""


class RoleMissing(DomainError):
    """The caller's roles don't allow this."""

    def __init__(self, message: str, *, principal: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.principal = principal


class LastAdministrator(DomainError):
    """Nobody would be left who may give roles on the whole pool."""


class TokenEnded(DomainError):
    """The token of who gives a command was revoked, or has expired, before the command had its turn."""

    reason = "TOKEN_REVOKED"


class TokenNotFound(DomainError):
    """No such token, or it has ended."""


class InviteUnknown(DomainError):
    """No such invite."""


class InviteUsedUp(DomainError):
    """Another key has come with this invite."""

    reason = "INVITE_USED"


class InviteExpired(DomainError):
    """The invite's time is over."""


class InviteElsewhere(DomainError):
    """The invite is for another node."""

    reason = "INVITE_FOR_ANOTHER_NODE"


class AuthorityInUse(DomainError):
    """Somebody trusts no other generation of the pool's authority."""


class AuthorityUnchanged(DomainError):
    """The pool's authority is at a step of its rotation at which this can't be done."""


class BrokenInvariant(AssertionError):
    """The core's own state contradicts itself: a defect, never the caller's fault."""

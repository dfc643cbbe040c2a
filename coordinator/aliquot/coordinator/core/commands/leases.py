"""Asking for leases, and what their launchers do with them."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.commands.base import Command
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome
from aliquot.coordinator.core.known.use_windows import Seen
from aliquot.coordinator.core.values.types import EndReason, RequestSpec


class Allocate(Command[AllocateOutcome], frozen=True):
    """Ask for a lease. `lease_id` is fresh; with a known (tenant, key) the old lease is the answer instead."""

    lease_id: str
    request: RequestSpec
    key: str = ""
    body_sha256: bytes = b""
    no_queue: bool = False
    by: str = ""
    """The principal that asks."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where one member is to go: a node and, unless the engine may pick them there, its devices."""

    node_id: str
    device_uuids: tuple[str, ...] = ()


class GrantOn(Command[AllocateOutcome], frozen=True):
    """Ask for a lease exactly there, because somebody else has decided where: granted now, or refused.

    It may take what `Allocate` with `no_queue` may take, and nothing that is kept for others.
    """

    lease_id: str
    request: RequestSpec
    places: tuple[MemberPlace, ...]
    """For each member."""
    key: str = ""
    body_sha256: bytes = b""
    by: str = ""
    """The principal that asks."""


class Release(Command[None], frozen=True):
    """End a lease for this reason. Ending a lease that has ended is answered with that lease."""

    lease_id: str
    reason: EndReason = EndReason.RELEASED
    detail: str = ""
    by: str = ""
    """The principal that ends it; empty: the pool itself."""
    exit_code: int | None = None
    """Of the program that ran in it; None: not known."""


class ExtendLease(Command[None], frozen=True):
    """Let a lease have a longer time limit, counted from its grant as the one that it was asked for with."""

    lease_id: str
    time_limit_ms: int
    reason: str = ""
    by: str = ""


class AcknowledgeShape(Command[None], frozen=True):
    """The launcher of an elastic lease has adapted to this shape: what it gives back need not wait any longer."""

    lease_id: str
    shape: int


class LookAtUse(Command[None], frozen=True):
    """Judge leases by what was seen of them since the last look. A bounded number at a time."""

    leases: tuple[Seen, ...]


class ExemptLease(Command[None], frozen=True):
    """Let idleness of a lease have no consequences for so long; 0: it has again."""

    lease_id: str
    for_ms: int
    reason: str = ""
    by: str = ""


class ConfirmNotice(Command[None], frozen=True):
    """A notifier has delivered a warning about a lease, and so all before it."""

    lease_id: str
    number: int
    by: str = ""


class ObserveUse(Command[None], frozen=True):
    """What a lease, or all leases of a tenant, were measured to use over an interval."""

    lease_id: str
    busy_milli_ms: int = 0
    memory_byte_ms: int = 0
    interval_ms: int = 0
    """Added up over slices."""
    tenant: str = ""
    """Of whose leases together; empty: of `lease_id` alone."""
    up_bytes: int = 0
    """From programs elsewhere to the processes that served their leases."""
    down_bytes: int = 0
    energy_mj: int = 0
    energy_interval_ms: int = 0

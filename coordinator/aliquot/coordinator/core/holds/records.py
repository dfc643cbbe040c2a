"""Holds: capacity kept for a named waiting request until a stated time.

A hold keeps *devices*: while it stands, nothing else is placed on those it names, and what is freed there stays for
its owner. It is made together with a preemption, or for the first request in line when that has waited for long; it
ends with the grant it was made for, by its expiry, or by being broken (a device of it was lost).
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.coordinator.core.types import Placement


class HoldKind(enum.StrEnum):
    """Why capacity is kept."""

    PREEMPTION = "preemption"
    """Victims are leaving; their capacity goes to the preemptor."""
    RESERVATION = "reservation"
    """The head of the line waits for running leases to end by themselves."""


class Hold(msgspec.Struct, frozen=True):
    """See the module's docstring."""

    owner: str
    """The lease it is for."""
    kind: HoldKind
    placement: Placement
    """What the owner will be granted."""
    created_ms: int
    expires_ms: int
    victims: tuple[str, ...] = ()
    start_ms: int = 0
    """When it should be complete; 0: not known. Short leases may use its devices until then."""
    shed: tuple[str, ...] = ()
    """Slices of elastic leases that are given back for it."""

    @property
    def device_uuids(self) -> tuple[str, ...]:
        """The devices that are kept, each once."""
        return tuple(dict.fromkeys(plan.device_uuid for member in self.placement.members for plan in member))

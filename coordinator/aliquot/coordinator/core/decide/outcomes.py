"""What a decision gives beside its facts."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.facts import Fact
from aliquot.coordinator.core.types import Missing, Placement


@dataclass(frozen=True, slots=True)
class AllocateOutcome:
    """The lease that answers an Allocate: `replayed` when its key had been used before."""

    lease_id: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class AdmitOutcome:
    """One step of the walk over the waiting lines. `more`: call again."""

    granted: bool
    more: bool


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """One step of what was due. `more`: call again, something else is due already."""

    more: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a request would be granted, wait or be refused."""

    fits_now: bool
    impossible: bool
    summary: str
    missing: tuple[Missing, ...] = ()
    placement: Placement | None = None
    queue_position: int = 0
    queue_length: int = 0
    ahead: tuple[str, ...] = ()


Outcome = AllocateOutcome | AdmitOutcome | TickOutcome | Explained | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Facts to journal and apply together, or not at all."""

    facts: tuple[Fact, ...] = ()
    outcome: Outcome = None


NOTHING = Decision()

__all__ = [
    "NOTHING",
    "AdmitOutcome",
    "AllocateOutcome",
    "Decision",
    "Explained",
    "Outcome",
    "TickOutcome",
]

"""What a decision gives beside its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, overload

import msgspec

from aliquot.coordinator.core.known.known import Work
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.troubles import Trouble
from aliquot.coordinator.core.values.types import Missing, Placement, RequestSpec

SEARCH_ATTEMPTS = 16
"""A search for victims counts as so many attempts of a turn."""


class AllocateOutcome(msgspec.Struct, frozen=True):
    """The lease that answers an Allocate: `replayed` when its key had been used before."""

    lease_id: str
    replayed: bool = False


class AdmitOutcome(msgspec.Struct, frozen=True):
    """One step of the pass over the waiting lines. `more`: call again."""

    granted: bool
    more: bool


class Attempt(NamedTuple):
    """What came of one look at a waiting request: one group of facts, or none."""

    facts: list[Fact]
    again: bool = False
    """Its line is tried again: at once, or in the next turn. False: the pass goes on to the next line."""
    cost: int = 1
    """In attempts of a turn."""


class TickOutcome(msgspec.Struct, frozen=True):
    """One step of what was due. `more`: call again, something else is due already."""

    more: bool


class SetAside(msgspec.Struct, frozen=True):
    """Work that had been set aside, and may be tried again now."""

    found: tuple[Trouble, ...]


QUOTA = "QUOTA"
"""The reason where a limit, a budget or a bound keeps a request waiting, not a lack of devices."""


class Explained(msgspec.Struct, frozen=True):
    """Why a request would be granted, wait or be refused."""

    fits_now: bool
    impossible: bool
    summary: str
    missing: tuple[Missing, ...] = ()
    placement: Placement | None = None
    queue_position: int = 0
    queue_length: int = 0
    ahead: tuple[str, ...] = ()
    would_preempt: tuple[str, ...] = ()
    """Who would have to end for it to start at once, where somebody may be ended for it."""
    expected_start_ms: int = 0
    """From the time limits of what runs; 0: unknown."""
    waits_for: tuple[str, ...] = ()
    """Then: leases that must end first, and that no time limit ends."""
    notes: tuple[str, ...] = ()
    instead: RequestSpec | None = None
    """With the smallest change: it would be granted at once, were it asked for now."""


class ApplyOutcome(msgspec.Struct, frozen=True):
    """What was (or, in a dry run, would be) declared, with the new versions; and what is so already."""

    changed: tuple[tuple[str, int], ...]
    unchanged: tuple[str, ...]


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, init=False)
class Decision(Generic[T_co]):
    """Facts to journal and apply together, or not at all, and what the caller is told once they are durable."""

    facts: tuple[Fact, ...]
    outcome: T_co
    taken: tuple[Work, ...]
    """What was due and is done with once the facts are applied."""

    @overload
    def __init__(self: Decision[None], facts: tuple[Fact, ...] = ()) -> None: ...

    @overload
    def __init__(self, facts: tuple[Fact, ...], outcome: T_co, taken: tuple[Work, ...] = ()) -> None: ...

    def __init__(self, facts: tuple[Fact, ...] = (), outcome: object = None, taken: tuple[Work, ...] = ()) -> None:
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "outcome", outcome)
        object.__setattr__(self, "taken", taken)


NOTHING = Decision()

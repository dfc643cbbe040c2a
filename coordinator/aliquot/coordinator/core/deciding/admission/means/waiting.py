"""One request whose turn has come, as every means of admission is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from aliquot.coordinator.core.books.holds import Hold, HoldKind
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import AdmissionPass, Head
from aliquot.coordinator.core.rules.granting import Offer, granted, is_entitled
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, Placement


class Situation(Enum):
    """Why a request still waits: which means come into question."""

    FITS = "it fits"
    OVER_LIMIT = "a limit keeps it out"
    NO_ROOM = "there is no room for it"


@dataclass(slots=True)
class Waiting:
    """The head of a line, and what was found when it was offered a place."""

    admission: AdmissionPass
    head: Head
    lease: Lease
    demand: Demand
    """What it asks for, as it is held to it, without devices that have failed it."""
    found: Offer
    now_ms: int
    kept_suffices: bool = False
    """What is kept for later requests would be room enough: nobody need end or shrink for it."""
    _blocking: list[Hold] | None = None

    @property
    def situation(self) -> Situation:
        """Which means come into question."""
        if self.found.placement is not None:
            return Situation.FITS
        return Situation.OVER_LIMIT if self.found.over is not None else Situation.NO_ROOM

    def room_is_coming(self, known: Known) -> bool:
        """Others end for it already, and devices are kept for it."""
        hold = known.holds.get(self.lease.lease_id)
        return hold is not None and hold.kind is HoldKind.PREEMPTION

    def blocking(self, known: Known) -> list[Hold]:
        """What is kept for requests that come after it. Looked up once."""
        if self._blocking is None:
            entitled = is_entitled(known, self.lease)
            self._blocking = holding.in_the_way(known, self.lease, entitled=entitled)
        return self._blocking

    def grant(self, placement: Placement, given_up: list[Fact] | None = None) -> Attempt:
        """Grant it this place. Its line is tried again, since it has another head now."""
        fact = granted(self.lease.lease_id, self.lease.lease_epoch + 1, placement, self.now_ms)
        return Attempt([*(given_up or ()), fact], again=True)


class Foreseen(NamedTuple):
    """What a means would come to."""

    giving: tuple[str, ...] = ()
    """The leases, or slices of elastic ones, that would end for it."""
    start_ms: int = 0
    """When it could start; 0: not known."""
    endless: tuple[str, ...] = ()
    """Then: leases that must end first, and that no time limit ends."""


@dataclass(frozen=True, slots=True)
class Means:
    """One way to serve a waiting request."""

    name: str
    situation: Situation
    attempt: Callable[[Known, Waiting], Attempt]
    """(what is known, who waits) -> facts that serve it or make room for it. No facts: the next means is tried, unless
    the attempt is to go on in the next turn (`again`). Changes nothing but memory. Its docstring says what it costs.
    """
    foresee: Callable[[Known, Lease, Demand, int], Foreseen | None] | None = None
    """(what is known, lease, demand, now_ms) -> what an attempt would come to, now or when the request has waited long
    enough; None: nothing. For `why`, for the forecast of starts, and before a node is ordered. Changes nothing.
    """

"""Preemptions and reprieves. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact


class PreemptionStarted(Fact, frozen=True, tag="preempt"):
    """Victims were chosen for a lease. Their ends (`LeaseReleasing`) and the hold are facts of the same group."""

    preemptor: str
    victims: tuple[str, ...]
    deadline_ms: int
    reclaim: bool
    """True: a guarantee is being reclaimed from borrowers; False: by priority."""
    kept: int = 3
    """How many of a victim's preemption times are remembered."""


class LeaseReprieved(Fact, frozen=True, tag="reprieve"):
    """A victim that had not given up anything yet goes on: nobody needs its capacity any more."""

    lease_id: str
    reason: str = ""

"""How many leases may be moved to make room: a small part of those that are asked for.

A move costs its lease a restart, so moves are earned by arrivals and not by time: a busy pool, in which large requests
lose the race for every gap, earns many, a quiet one few. In a steady state as many leases are asked for in a mean life
time as live at once; so nine moves in a thousand requests are 0.9 % of the leases in a mean life time, whatever
that time is.
"""

from __future__ import annotations

from aliquot.coordinator.core.rests import Rests
from aliquot.coordinator.core.types import Demand

MOVES_PERMILLE = 9
"""Moves per thousand requests."""

SAVED_MAX = 24
"""Moves that can be saved up: three nodes of eight single-device leases."""

DEMAND_REST_MS = 5_000
"""A plan that came to nothing is not made again for an equal request before this time has passed."""

PLAN_REST_MS = 1_000
"""Nor for anybody before this one: a plan takes milliseconds of the writer's, however many requests wait."""

RESTS_MAX = 1024


class MoveBudget:
    """Earned by arrivals, spent by moves. Volatile: a restarted coordinator begins with nothing saved."""

    def __init__(self, permille: int = MOVES_PERMILLE) -> None:
        self._permille = permille
        self._saved_milli = 0
        self._rests: Rests[Demand] = Rests(RESTS_MAX)
        self._rest_until_ms = 0

    def may_plan(self, demand: Demand, now_ms: int) -> bool:
        """Whether moves may be made, and a plan for this demand is worth the time."""
        if not self.available or now_ms < self._rest_until_ms:
            return False
        return self._rests.of(demand, now_ms) is None

    def rest(self, demand: Demand, now_ms: int) -> None:
        """A plan for this demand came to nothing."""
        self._rests.begin(demand, 0, now_ms, now_ms + DEMAND_REST_MS)
        self._rest_until_ms = now_ms + PLAN_REST_MS

    @property
    def available(self) -> int:
        """Moves that may be made now."""
        return self._saved_milli // 1000

    def earn(self, requests: int = 1) -> None:
        """So many requests have come."""
        self._saved_milli = min(self._saved_milli + self._permille * requests, SAVED_MAX * 1000)

    def spend(self, moves: int) -> None:
        """So many are being made."""
        self._saved_milli -= moves * 1000

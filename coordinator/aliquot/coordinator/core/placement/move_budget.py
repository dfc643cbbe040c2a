"""How many leases may be moved to make room: a small part of those that live.

A move costs its lease a restart, so moves are earned by starts and not by time: a busy pool, in which large requests
lose the race for every gap, earns many, a quiet one few. In a steady state as many leases start in a mean life time as
live at once, however many more ask (Little's law); so eight moves in a thousand starts are 0.8 % of the live leases in
a mean life time, whatever that time is. What is saved up may be spent at once, and is bounded by what lives, too: by
0.2 %, so that in any mean life time at most 1 % are moved. Only a pool of fewer than 4,000 leases may save up more than
that: what it takes to clear one node.
"""

from __future__ import annotations

from aliquot.coordinator.core.values.rests import Rests
from aliquot.coordinator.core.values.types import Demand

MOVES_PERMILLE = 8
"""Moves per thousand leases that start."""

SAVED_PERMILLE = 2
"""Moves that can be saved up, per thousand live leases..."""

SAVED_MIN = 8
"""...or so many: a node of eight single-device leases."""

DEMAND_REST_MS = 5_000
"""A plan that came to nothing is not made again for an equal request before this time has passed."""

PLAN_REST_MS = 1_000
"""Nor for anybody before this one: a plan takes milliseconds of the writer's, however many requests wait."""

RESTS_MAX = 1024


class MoveBudget:
    """Earned by starts, spent by moves. Volatile: a restarted coordinator begins with nothing saved."""

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

    def earn(self, starts: int, live: int) -> None:
        """So many leases have started, and so many live."""
        most_milli = max(SAVED_MIN * 1000, SAVED_PERMILLE * live)
        self._saved_milli = min(self._saved_milli + self._permille * starts, most_milli)

    def spend(self, moves: int) -> None:
        """So many are being made."""
        self._saved_milli -= moves * 1000

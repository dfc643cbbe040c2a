"""How many leases may be moved to make room: a small part of those that are asked for.

A move costs its lease a restart, so moves are earned by arrivals and not by time: a busy pool, in which large requests
lose the race for every gap, earns many, a quiet one few. In a steady state as many leases are asked for in a mean life
time as live at once; so nine moves in a thousand requests are 0.9 % of the leases in a mean life time, whatever
that time is.
"""

from __future__ import annotations

MOVES_PERMILLE = 9
"""Moves per thousand requests."""

SAVED_MAX = 24
"""Moves that can be saved up: three nodes of eight single-device leases."""


class MoveBudget:
    """Earned by arrivals, spent by moves. Volatile: a restarted coordinator begins with nothing saved."""

    def __init__(self, permille: int = MOVES_PERMILLE) -> None:
        self._permille = permille
        self._saved_milli = 0

    @property
    def available(self) -> int:
        """Moves that may be made now."""
        return self._saved_milli // 1000

    def earn(self) -> None:
        """A request has come."""
        self._saved_milli = min(self._saved_milli + self._permille, SAVED_MAX * 1000)

    def spend(self, moves: int) -> None:
        """So many are being made."""
        self._saved_milli -= moves * 1000

"""Leases that are moved to make room for others are few: eight for a thousand that have started."""

from __future__ import annotations

_PERMILLE = 8
_FOR_ROOM = "needs the room"


class Moves:
    """Counts all that there ever were: a coordinator that takes over begins with nothing saved."""

    def __init__(self) -> None:
        self._started = 0
        self._made = 0

    def started(self) -> None:
        """A lease is granted for the first time."""
        self._started += 1

    def moved(self, members: int, reason: str) -> str:
        """A lease goes elsewhere; what is wrong with that."""
        if not reason.endswith(_FOR_ROOM):
            return ""  # it could not stay, or an administrator wants it
        self._made += members
        if self._made * 1000 > self._started * _PERMILLE:
            return f"{self._made} members were moved to make room, but {self._started} leases started"
        return ""

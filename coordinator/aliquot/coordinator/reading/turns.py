"""Whose turn it is to be written to: so many every few milliseconds, so that those who watch do not delay who calls.

Writing a message to a stream costs the event loop a tenth of a millisecond, whatever is written. While few watch, they
are written to as fast as they read. When more want a turn than there are, they are served in the order in which they
came, and whoever has had its turn waits again; those who have fallen behind get more messages in a turn, because having
them all list again would cost more.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK_S = 0.005
TURNS_PER_TICK = 10
"""With a message each, about a fifth of the loop's time."""


class Waiting(Protocol):
    """Who waits for its turn."""

    @property
    def per_turn(self) -> int:
        """Messages that it needs in a turn, at least 1."""

    def go(self) -> None:
        """It is its turn."""


class Turns:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._line: dict[Waiting, None] = {}
        self._having: dict[Waiting, int] = {}
        """Those whose turn it is, with the messages that are left to each while others wait."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Those who wait."""
        return len(self._line)

    def take(self, who: Waiting) -> bool:
        """Whether it may be written one message now."""
        left = self._having.get(who)
        if left is None:
            if self._line or len(self._having) >= TURNS_PER_TICK:
                return False
            self._give(who)
            self._start()
            return True
        if self._line and not left:
            return False
        self._having[who] = max(left - 1, 0)
        return True

    def join(self, who: Waiting) -> None:
        """Wait at the end of the line; who is in it keeps its place."""
        if self.take(who):
            who.go()
        else:
            self._line.setdefault(who)
            self._start()

    def leave(self, who: Waiting) -> None:
        """Wait no more."""
        self._line.pop(who, None)

    def _give(self, who: Waiting) -> None:
        self._having[who] = who.per_turn - 1

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._having.clear()
        while self._line and len(self._having) < TURNS_PER_TICK:
            who = next(iter(self._line))
            del self._line[who]
            self._give(who)
            who.go()
        if self._having:
            self._start()

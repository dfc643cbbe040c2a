"""Whose turn it is to be written to: so many every few milliseconds, so that those who watch do not delay who calls.

Writing to a stream costs the event loop a tenth of a millisecond, whatever is written. Those who wait are served in the
order in which they came; while few watch, nobody waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

TICK_S = 0.005
TURNS_PER_TICK = 10
"""About a fifth of the loop's time."""


class Waiting(Protocol):
    """Who waits for its turn."""

    def go(self) -> None:
        """It is its turn."""


class Turns:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._line: dict[Waiting, None] = {}
        self._free = TURNS_PER_TICK
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def take(self) -> bool:
        """Have a turn at once, where one is free and nobody waits."""
        if self._line or not self._free:
            return False
        self._free -= 1
        self._start()
        return True

    def join(self, who: Waiting) -> None:
        """Wait at the end of the line; who is in it keeps its place."""
        if self.take():
            who.go()
        else:
            self._line.setdefault(who)
            self._start()

    def leave(self, who: Waiting) -> None:
        """Wait no more."""
        self._line.pop(who, None)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._free = TURNS_PER_TICK
        while self._line and self._free:
            who = next(iter(self._line))
            del self._line[who]
            self._free -= 1
            who.go()
        if self._free < TURNS_PER_TICK:
            self._start()

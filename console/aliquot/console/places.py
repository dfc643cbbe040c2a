"""Bounded places, of which nobody takes all."""

from __future__ import annotations

from collections import Counter


class Places:
    """Counts those that are taken, and by whom."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0
        self._of: Counter[str] = Counter()

    def take(self, who: str, part: int) -> bool:
        """One more for somebody who may have this part of all, if there is room."""
        if self.now >= self.most or self._of[who] >= part:
            return False
        self.now += 1
        self._of[who] += 1
        return True

    def leave(self, who: str) -> None:
        """One less."""
        self.now -= 1
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]

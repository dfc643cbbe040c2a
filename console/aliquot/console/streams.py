"""How many streams of events there may be at once, and of one caller: nobody's tabs leave others without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aliquot.client import Overloaded

_AGAIN_S = 5.0
_PART = 4


class Streams:
    """Counts them. A caller may have a quarter of all, and two in any case."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0
        self._of: dict[str, int] = {}

    @contextlib.contextmanager
    def one(self, token: str) -> Iterator[None]:
        """One more, as long as this lasts. Raises Overloaded."""
        own = self._of.get(token, 0)
        if self.now >= self.most:
            raise Overloaded(f"{self.most} streams of events are open, which is the bound", retry_after_s=_AGAIN_S)
        if own >= max(2, self.most // _PART):
            raise Overloaded(f"{own} streams of events are open with this token", retry_after_s=_AGAIN_S)
        self.now += 1
        self._of[token] = own + 1
        try:
            yield
        finally:
            self.now -= 1
            self._of[token] -= 1
            if not self._of[token]:
                del self._of[token]

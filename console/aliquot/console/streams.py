"""How many streams of events there may be at once, and of one principal: nobody's tabs leave others without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aliquot.client import Overloaded

_AGAIN_S = 5.0
_PART = 4


class Streams:
    """Counts them. However many tokens it has, a principal may have a quarter of all, and two in any case."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0
        self._of: dict[str, int] = {}

    @contextlib.contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """One more, as long as this lasts. Raises Overloaded."""
        own = self._of.get(principal, 0)
        if self.now >= self.most:
            raise Overloaded(f"{self.most} streams of events are open, which is the bound", retry_after_s=_AGAIN_S)
        if own >= max(2, self.most // _PART):
            raise Overloaded(f"{own} streams of events of yours are open", retry_after_s=_AGAIN_S)
        self.now += 1
        self._of[principal] = own + 1
        try:
            yield
        finally:
            self.now -= 1
            self._of[principal] -= 1
            if not self._of[principal]:
                del self._of[principal]

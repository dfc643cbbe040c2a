"""How many streams of events there may be at once, and of one principal: nobody's tabs leave others without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aliquot.client import Overloaded
from aliquot.console.places import Places

_AGAIN_S = 5.0
_PART = 4


class Streams(Places):
    """However many tokens it has, a principal may have a quarter of all, and two in any case."""

    @contextlib.contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """One more, as long as this lasts. Raises Overloaded."""
        if not self.take(principal, max(2, self.most // _PART)):
            told = f"{self.now} of {self.most} streams of events are open, {self._of[principal]} of them yours"
            raise Overloaded(told, retry_after_s=_AGAIN_S)
        try:
            yield
        finally:
            self.leave(principal)

"""Which keys a control loop has to look at, and when those that failed are looked at again.

Pure: times come in, in seconds of any clock that only rises. A key is here at most once, however often it is added; one
that is added while it is being looked at is looked at again.
"""

from __future__ import annotations

import math


class WorkQueue:
    """First come, first served.

    Args:
        again_s: how long after its first failure a key is tried again; then twice as long each time.
        again_max_s: the longest of these pauses.
    """

    def __init__(self, again_s: float, again_max_s: float) -> None:
        self._again_s = again_s
        self._again_max_s = max(again_s, again_max_s)
        self._ready: dict[str, None] = {}
        self._later: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._soonest_s = math.inf

    def add(self, key: str) -> None:
        """Have it looked at now, also if it was to wait."""
        self._later.pop(key, None)
        self._ready[key] = None

    def take(self, now_s: float) -> str | None:
        """The next one; None: none is due. Say `done` or `again` of it afterwards."""
        if self._soonest_s <= now_s:
            for due in sorted((key for key, at in self._later.items() if at <= now_s), key=self._later.__getitem__):
                del self._later[due]
                self._ready[due] = None
            self._soonest_s = min(self._later.values(), default=math.inf)
        key = next(iter(self._ready), None)
        if key is not None:
            del self._ready[key]
        return key

    def done(self, key: str) -> None:
        """It is as it should be."""
        self._failures.pop(key, None)

    def again(self, key: str, now_s: float) -> None:
        """It is not, and nothing may tell when it can be: look again after a pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if key in self._ready:
            return
        at = now_s + min(self._again_max_s, self._again_s * 2.0 ** min(failures, 32))
        self._later[key] = at
        self._soonest_s = min(self._soonest_s, at)

    def next_s(self) -> float:
        """When one is due: infinity where there is none, minus infinity where one is."""
        return -math.inf if self._ready else self._soonest_s if self._later else math.inf

"""How often somebody may call: a token bucket for each, which costs one look-up and no timer.

Of each bucket only the moment is kept at which it will be full again. So a bucket that is full is the same as none, and
what is forgotten is what nobody could tell apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallerBounds:
    """What one principal may have of the door; 0: no bound."""

    requests_per_s: int
    burst: int
    """So many at once, after a pause."""
    streams_max: int
    """Watches and calls that wait."""


class Buckets:
    """One bucket a name."""

    __slots__ = ("_burst_ms", "_each_ms", "_full_ms", "_kept_max", "_now_ms")

    def __init__(self, now_ms: Callable[[], int], per_s: int, burst: int, kept_max: int) -> None:
        """`now_ms` is a clock that never goes back; `per_s` 0 lets everybody in; `kept_max` bounds what is kept."""
        self._now_ms = now_ms
        self._full_ms: dict[str, float] = {}
        """When each bucket that is not full will be."""
        self._kept_max = kept_max
        self.adopt(per_s, burst)

    def adopt(self, per_s: int, burst: int) -> None:
        """Count by these from now on."""
        self._each_ms = 1000 / per_s if per_s else 0.0
        self._burst_ms = self._each_ms * max(burst, 1)

    def __len__(self) -> int:
        return len(self._full_ms)

    def take(self, name: str) -> int:
        """Count one. Answers with 0, or with in how many milliseconds the next is let in: then it was not counted."""
        each_ms = self._each_ms
        if not each_ms:
            return 0
        now_ms = self._now_ms()
        full_ms = self._full_ms.get(name, 0.0)
        if full_ms <= now_ms:
            self._put(name, now_ms + each_ms, now_ms)
            return 0
        too_early_ms = full_ms - now_ms + each_ms - self._burst_ms
        if too_early_ms > 1e-6:
            return int(too_early_ms) + 1
        self._full_ms[name] = full_ms + each_ms
        return 0

    def charge(self, name: str, number: int) -> None:
        """Count so many more of one who has been let in: they are not refused, but those that follow wait for them."""
        if self._each_ms and number > 0:
            now_ms = self._now_ms()
            self._put(name, max(self._full_ms.get(name, 0.0), now_ms) + number * self._each_ms, now_ms)

    def _put(self, name: str, full_ms: float, now_ms: int) -> None:
        if len(self._full_ms) >= self._kept_max and name not in self._full_ms:
            kept = [(other, until_ms) for other, until_ms in self._full_ms.items() if until_ms > now_ms]
            self._full_ms = dict(kept[-self._kept_max // 2 :])
        self._full_ms[name] = full_ms

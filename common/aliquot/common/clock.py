"""Time as an argument: decisions never read a clock; everything else reads time through this interface.

A machine's wall clock can step backwards (NTP, an administrator). A ledger needs milliseconds that never go back, so
the wall clock is read once, at start; after that, time is what has elapsed since then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Two kinds of time, both in whole milliseconds, neither ever going backwards."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, for facts, deadlines and people. Time asleep counts."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment, for intervals and graces. Time asleep does not count."""


def wall_ms() -> int:
    """What the machine's clock shows now, which may be stepped: for comparing it with others'."""
    return time.time_ns() // _NS_PER_MS


def _elapsed_ns() -> int:
    # CLOCK_BOOTTIME is CLOCK_MONOTONIC that goes on during suspend. Only Linux has it, and only Linux runs agents.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()


class SystemClock:
    """The machine's time, anchored to the wall clock once.

    `not_before_ms` is the newest time on record (that of the last journalled fact): if the wall clock is behind it at
    start, time goes on from there. The sources are arguments for tests only.
    """

    __slots__ = ("_anchor_ns", "_elapsed_ns", "_running_ns", "_start_elapsed_ns")

    def __init__(
        self,
        not_before_ms: int = 0,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = _elapsed_ns,
        running_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._elapsed_ns = elapsed_ns
        self._running_ns = running_ns
        self._start_elapsed_ns = elapsed_ns()
        self._anchor_ns = max(wall_ns(), not_before_ms * _NS_PER_MS)

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return (self._anchor_ns + self._elapsed_ns() - self._start_elapsed_ns) // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self._running_ns() // _NS_PER_MS

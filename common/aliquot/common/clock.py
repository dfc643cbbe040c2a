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


def _elapsed_ns() -> int:
    # CLOCK_BOOTTIME is CLOCK_MONOTONIC that goes on during suspend. Only Linux has it, and only Linux runs agents.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns()


class SystemClock:
    """The machine's time, anchored to the wall clock once.

    `not_before_ms` is the newest time on record (that of the last journalled fact): if the wall clock is behind it at
    start, time goes on from there. The sources are arguments for tests only.
    """

    __slots__ = ("_anchor_ns", "_elapsed_ns", "_running_ns", "_start_elapsed_ns", "_start_running_ns", "_wall_ns")

    def __init__(
        self,
        not_before_ms: int = 0,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = _elapsed_ns,
        running_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._elapsed_ns = elapsed_ns
        self._running_ns = running_ns
        self._start_elapsed_ns = elapsed_ns()
        self._start_running_ns = running_ns()
        self._anchor_ns = max(wall_ns(), not_before_ms * _NS_PER_MS)

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return (self._anchor_ns + self._elapsed_ns() - self._start_elapsed_ns) // _NS_PER_MS

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self._running_ns() // _NS_PER_MS

    def jump_ms(self) -> int:
        """How far the wall clock is ahead of `now_ms` (negative: behind), because it was stepped or started behind."""
        return self._wall_ns() // _NS_PER_MS - self.now_ms()

    def suspended_ms(self) -> int:
        """How long the machine has been asleep since this clock was made."""
        elapsed = self._elapsed_ns() - self._start_elapsed_ns
        running = self._running_ns() - self._start_running_ns
        return max(0, elapsed - running) // _NS_PER_MS


class ManualClock:
    """Time that moves only when told to: for tests and simulation."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 0, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Both kinds of time pass. Raises `ValueError` below zero."""
        self.suspend(by_ms)
        self._monotonic_ms += by_ms

    def advance_to(self, now_ms: int) -> None:
        """Moves to a moment not before the present one. Raises `ValueError` for an earlier one."""
        self.advance(now_ms - self._now_ms)

    def suspend(self, by_ms: int) -> None:
        """The machine sleeps: only `now_ms` passes. Raises `ValueError` below zero."""
        if by_ms < 0:
            raise ValueError(f"time does not go back: {by_ms} ms")
        self._now_ms += by_ms

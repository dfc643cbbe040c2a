"""A clock that moves only when told to."""

from __future__ import annotations


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

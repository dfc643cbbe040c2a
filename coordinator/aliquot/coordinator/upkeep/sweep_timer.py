"""Runs the regular sweeps once a second, and notices when this process itself stood still.

A beat that comes late means that the process was stopped, or that the machine slept or was overloaded. No message could
arrive meanwhile, so every deadline starts anew before a sweep looks for who is late. When beats stay late, the
coordinator is overloaded, and agents are asked to send less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aliquot.common.clock import Clock

log = logging.getLogger(__name__)

BEAT_MS = 1_000
PAUSE_MS = 3_000
"""If a beat is later than this, by either clock, the process stood still."""
STUCK_MS = 15_000
_LAGGING_MS = 300
_LAGGING_BEATS = 5
_CALM_MS = 50
_CALM_BEATS = 60
_FACTOR_MAX = 4


class SweepTimer:
    """Calls `sweeps` once a second, and `paused` before them after a pause; `pressure` hears how much less agents
    should send, as a factor.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        sweeps: list[Callable[[], object]],
        paused: list[Callable[[], None]],
        pressure: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._sweeps = sweeps
        self._paused = paused
        self._pressure = pressure
        self._last_monotonic_ms = clock.monotonic_ms()
        self._last_now_ms = clock.now_ms()
        self._lagging = self._calm = 0
        self._factor = 1
        self.lag_ms = 0
        """How late the last beat was."""

    async def run(self) -> None:
        """Until cancelled."""
        self._last_monotonic_ms, self._last_now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        while True:
            await asyncio.sleep(BEAT_MS / 1000)
            self.beat()

    def beat(self) -> None:
        """One beat."""
        monotonic_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        self.lag_ms = max(0, monotonic_ms - self._last_monotonic_ms - BEAT_MS)
        slept_ms = max(0, (now_ms - self._last_now_ms) - (monotonic_ms - self._last_monotonic_ms))
        self._last_monotonic_ms, self._last_now_ms = monotonic_ms, now_ms
        if self.lag_ms > PAUSE_MS or slept_ms > PAUSE_MS:
            log.warning("this process stood still for %d ms: agents and leases start afresh", self.lag_ms + slept_ms)
            for paused in self._paused:
                paused()
        for sweep in self._sweeps:
            sweep()
        self._adjust_pressure()

    def is_live(self) -> bool:
        """Whether the event loop still turns. Asked from other threads."""
        return self._clock.monotonic_ms() - self._last_monotonic_ms < STUCK_MS

    def _adjust_pressure(self) -> None:
        self._lagging = self._lagging + 1 if self.lag_ms > _LAGGING_MS else 0
        self._calm = self._calm + 1 if self.lag_ms < _CALM_MS else 0
        if self._lagging >= _LAGGING_BEATS and self._factor < _FACTOR_MAX:
            self._factor, self._lagging = self._factor * 2, 0
            self._pressure(self._factor)
        elif self._calm >= _CALM_BEATS and self._factor > 1:
            self._factor, self._calm = self._factor // 2, 0
            self._pressure(self._factor)

"""The clocks of the simulated world: what production code is given in the place of the machine's."""

from __future__ import annotations

from random import Random

from aliquot.common.clock import SystemClock
from tests.simulation.sim.loop import SimLoop

MIDNIGHT_MS = 1_790_035_200_000
EPOCH_MS = MIDNIGHT_MS - 60_000
"""Wall clock at the start of each simulation: a day ends while it runs."""


class SimTime:
    """The module `time`, as one part of the world sees it.

    The precise counter moves on a little with every look, as a real one would, so that the writer's turns end at
    moments that differ from seed to seed.
    """

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._looked_ns = 0
        self.step_ns = 8_000

    def perf_counter(self) -> float:
        """Seconds."""
        return self.perf_counter_ns() / 1e9

    def time(self) -> float:
        """Seconds since 1970, unstepped."""
        return EPOCH_MS / 1000 + self._loop.now_us / 1e6

    def perf_counter_ns(self) -> int:
        """Nanoseconds."""
        self._looked_ns += self._random.randrange(self.step_ns)
        return self._loop.now_us * 1000 + self._looked_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return self._loop.now_us * 1000

    def monotonic(self) -> float:
        """Seconds."""
        return self._loop.now_us / 1e6


class WallClock:
    """The time that one host's system clock shows: it may be stepped, and the host may sleep."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.stepped_us = 0
        self.asleep_us = 0

    def make(self, not_before_ms: int = 0) -> SystemClock:
        """A production clock on this host."""
        return SystemClock(
            not_before_ms,
            wall_ns=lambda: EPOCH_MS * 1_000_000 + (self._loop.now_us + self.stepped_us) * 1000,
            elapsed_ns=lambda: self._loop.now_us * 1000,
            running_ns=lambda: (self._loop.now_us - self.asleep_us) * 1000,
        )

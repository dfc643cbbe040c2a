"""Where production code reaches for the machine (clocks, /proc, threads, sockets, gRPC), it gets the simulated world's.

Everything that decides already takes time, ids and randomness as arguments. What is replaced here are the few names at
the edges, and only while a simulation runs: nothing in production code knows of it.
"""

from __future__ import annotations

import logging
import sys
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from aliquot.common.clock import SystemClock
from aliquot.common.ids import IdGenerator
from aliquot.coordinator import main as main_module
from aliquot.coordinator.upkeep import gc
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.writing import writer as writer_module
from tests.simulation.sim.loop import SimLoop, current
from tests.simulation.sim.server import SimServer
from tests.simulation.sim.store import SimJournalThread, Store

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


def _clock(not_before_ms: int = 0) -> SystemClock:
    clock: SystemClock = current().host.clock.make(not_before_ms)
    return clock


@contextmanager
def simulated(loop: SimLoop, store: Store, world_random: Random) -> Iterator[SimTime]:
    """Redirect production code to this world."""
    random = Random(world_random.getrandbits(64))
    time = SimTime(loop, random)
    with ExitStack() as stack:
        put: Callable[..., Any] = lambda *a, **k: stack.enter_context(mock.patch.object(*a, **k))  # noqa: E731
        for module in list(sys.modules.values()):
            if module.__name__.startswith("aliquot.coordinator") and vars(module).get("time") is real_time:
                put(module, "time", time)
        # What production code logs as an exception is a defect that it has caught: here, it is one that is found.
        put(logging.Logger, "exception", lambda self, text, *args, **_: loop.errors.append(text % args + _caught()))
        put(rpc_errors.log, "error", lambda text, **said: loop.errors.append(f"{text}: {said['exc_info']!r}"))
        # the coordinator
        put(writer_module, "JournalThread", lambda: SimJournalThread(loop, store, random))
        put(main_module, "Server", SimServer)
        put(main_module, "SystemClock", _clock)
        put(main_module, "IdGenerator", lambda: IdGenerator(random))
        put(main_module, "version", lambda: "0")
        put(main_module, "python_gc", SimpleNamespace(disable=lambda: None))
        put(gc, "settle", lambda: None)
        put(gc.PauseMeter, "install", lambda self: None)
        put(gc.PauseMeter, "remove", lambda self: None)
        yield time


def _caught() -> str:
    return f": {sys.exc_info()[1]!r}"

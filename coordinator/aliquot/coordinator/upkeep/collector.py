"""Settings of the garbage collector that keep its pauses short, and a measurement of those that remain.

Nearly everything here lives for long and refers to nothing that refers back, so reference counting frees what dies.
Not so what gRPC leaves of every call (a closure that refers to itself, with the call's metadata: five objects) and of
every refusal (its traceback and the frames in it: about thirty). They die young, so it is the youngest generation's
threshold that bounds how many wait to be freed, how long freeing them takes (while leases are granted 4,000: 1.2 ms,
which is less than a turn of the writer; 10,000: 3 ms; 50,000: 3 to 35 ms), and how far they spread what lives for long
over the memory (50,000: 10 MiB, in steps of 3 over the first minutes). The next generation holds leases and takes
longer, so it comes after as many objects as ever, half a million.

After start-up what has been loaded is frozen out of the collector's sight; its older thresholds are raised so that a
full collection is rare, and each pause is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_YOUNG_THRESHOLD = 4_000
_OLDER_THRESHOLD = 125
_OLDEST_THRESHOLD = 1_000


class GarbageCollector:
    """The interpreter's, as a coordinator asks it."""

    def __init__(self, perf_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._perf_ns = perf_ns
        self._report: Callable[[float], None] = lambda seconds: None
        self._started_ns = 0

    def hold_off(self) -> None:
        """Collect nothing while everything is being loaded."""
        gc.disable()
        if gc.get_freeze_count():  # loading anew: what was loaded before is to be freed, cycles and all
            gc.unfreeze()
            gc.collect()

    def settle(self) -> None:
        """Everything is loaded: leave that out of collections, raise the thresholds, and collect from now on.

        What start-up left behind is frozen along: looking for it among a hundred thousand leases would take half a
        second of the restart, and it is little.
        """
        gc.freeze()
        gc.set_threshold(_YOUNG_THRESHOLD, _OLDER_THRESHOLD, _OLDEST_THRESHOLD)
        gc.enable()

    def measure(self, report: Callable[[float], None]) -> None:
        """Report each pause, in seconds."""
        self._report = report
        gc.callbacks.append(self._heard)

    def stop_measuring(self) -> None:
        """Report no more pauses."""
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._started_ns = self._perf_ns()
        elif self._started_ns:
            self._report((self._perf_ns() - self._started_ns) / 1e9)
            self._started_ns = 0

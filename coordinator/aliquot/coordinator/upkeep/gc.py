"""Keep the garbage collector from stopping the coordinator, and show what it still costs.

Nearly everything here lives for long and refers to nothing that refers back, so reference counting frees what dies.
Not so what gRPC leaves of every call (a closure that refers to itself, with the call's metadata: five objects) and of
every refusal (its traceback and the frames in it: about thirty). They die young, so it is the youngest generation's
threshold that bounds how many wait to be freed, how long freeing them takes (10,000: 0.5 ms, 50,000: 3 to 35 ms), and
how far they spread what lives for long over the memory (50,000: 10 MiB, in steps of 3 over the first minutes).

After start-up what has been loaded is frozen out of the collector's sight; its older thresholds are raised so that a
full collection is rare, and each pause is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

_YOUNG_THRESHOLD = 10_000
_OLDER_THRESHOLD = 50
_OLDEST_THRESHOLD = 1_000


def settle() -> None:
    """Call once everything is loaded: freeze it, and raise the thresholds.

    What start-up left behind is frozen along: looking for it among a hundred thousand leases would take half a second
    of the restart, and it is little.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_THRESHOLD, _OLDER_THRESHOLD, _OLDEST_THRESHOLD)
    gc.enable()


class PauseMeter:
    """Times each collection. `report` gets seconds."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._started_ns = 0

    def install(self) -> None:
        """Listen to the collector."""
        gc.callbacks.append(self._heard)

    def remove(self) -> None:
        """Listen no more."""
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._started_ns = time.perf_counter_ns()
        elif self._started_ns:
            self._report((time.perf_counter_ns() - self._started_ns) / 1e9)
            self._started_ns = 0

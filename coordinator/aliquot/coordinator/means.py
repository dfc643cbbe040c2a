"""What a coordinator uses of its machine: time, randomness, a thread, a server, the garbage collector.

Whoever makes a coordinator may give it others; a simulation gives it those of its world. What leads to other machines
and to disks (journals, leadership) is handed over as a whole and brings its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from aliquot.common.clock import Clock, SystemClock
from aliquot.common.ids import IdGenerator
from aliquot.coordinator.rpc.server import Server, Serving
from aliquot.coordinator.runtime import version
from aliquot.coordinator.upkeep.collector import GarbageCollector, PythonCollector
from aliquot.coordinator.writing.journal.thread import JournalThread, JournalWorker


@dataclass(frozen=True, slots=True)
class Means:
    """Factories, since some of it is needed anew with each leadership. The defaults are the real ones."""

    clock: Callable[[int], Clock] = SystemClock
    """Given the newest time on record, in milliseconds: it shows none before."""
    perf_ns: Callable[[], int] = time.perf_counter_ns
    """A precise counter in nanoseconds, to measure how long something takes."""
    ids: Callable[[], IdGenerator] = IdGenerator
    journal_thread: Callable[[], JournalWorker] = JournalThread
    server: Callable[[Sequence[grpc.GenericRpcHandler]], Serving] = Server
    garbage_collector: Callable[[], GarbageCollector] = PythonCollector
    version: str = field(default_factory=version)
    """Of the program, as agents and launchers are told."""

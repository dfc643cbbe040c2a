"""What a coordinator uses of its machine: clocks, randomness, a thread, a server, the garbage collector.

They are parameters, so that a simulation can replace them. Journals and leadership, which reach disks and other
machines, are parameters of their own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from aliquot.common.clock import Clock, SystemClock
from aliquot.common.duties import Tell
from aliquot.common.ids import IdGenerator
from aliquot.common.runtime import VERSION
from aliquot.coordinator.logins.config import OidcSettings, PodSettings
from aliquot.coordinator.logins.logins import Logins
from aliquot.coordinator.rpc.server import Server, Serving
from aliquot.coordinator.upkeep.collector import GarbageCollector
from aliquot.coordinator.writing.journal.thread import JournalThread, JournalWorker


@dataclass(frozen=True, slots=True)
class Means:
    """Factories, as some of these are made anew with each leadership. The defaults are the real ones."""

    clock: Callable[[int], Clock] = SystemClock
    """Takes the newest time on record, in milliseconds; the clock never shows an earlier one."""
    perf_ns: Callable[[], int] = time.perf_counter_ns
    """A precise counter in nanoseconds, to measure how long something takes."""
    ids: Callable[[], IdGenerator] = IdGenerator
    entropy: Callable[[int], bytes] = secrets.token_bytes
    """Random bytes that nobody can guess: of tokens."""
    journal_thread: Callable[[], JournalWorker] = JournalThread
    server: Callable[[Sequence[grpc.GenericRpcHandler]], Serving] = Server
    garbage_collector: Callable[[], GarbageCollector] = GarbageCollector
    logins: Callable[[OidcSettings, PodSettings, Clock, Tell], Logins] = Logins
    """Who vouches for callers."""
    version: str = VERSION
    """Of the program, as agents and launchers are told."""

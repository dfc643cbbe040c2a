"""A record of what runs, written beside the pool's state: for `down`, and for a second `up`."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from dataclasses import dataclass

import msgspec

from aliquot.cli._json import dumps
from aliquot.cli.localpool.layout import Layout
from aliquot.common.own_files import write_whole
from aliquot.common.processes import start_ticks

_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, identified so that a later one with the same pid is not mistaken for it."""

    name: str
    pid: int
    started_ticks: int

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessId:
        """The identity of a living process."""
        return cls(name, pid, start_ticks(pid) or 0)

    @property
    def alive(self) -> bool:
        """Whether exactly this process is alive."""
        return start_ticks(self.pid) == self.started_ticks

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is alive."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            # Opened before the comparison, so that the pid can't pass to another process in between.
            if self.alive:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of the pool."""

    name: str
    socket: str
    devices: str
    metrics: str


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool that is up."""

    coordinator: str
    metrics: str
    nodes: tuple[NodeRecord, ...]
    supervisor: ProcessId
    parts: tuple[ProcessId, ...]
    state_dir: str
    console: str = ""
    """Where a browser finds it; empty: there is none."""

    def write(self, layout: Layout) -> None:
        """Write it atomically."""
        write_whole(layout.record, dumps(self, indent=2).encode(), mode=0o644, durable=False)

    @classmethod
    def read(cls, layout: Layout) -> PoolRecord | None:
        """The record, if there is one that can be read."""
        try:
            return msgspec.json.decode(layout.record.read_bytes(), type=cls)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """Those that are alive, the supervisor first: it ends the others in order."""
        return tuple(process for process in (self.supervisor, *self.parts) if process.alive)

    def stop(self, timeout_s: float) -> bool:
        """End everything: the supervisor, then what it left behind. False if something did not end."""
        for number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 5.0)):
            for process in self.processes:
                process.signal(number)
                if process is self.supervisor and _gone([process], patience_s):
                    continue
            if _gone(self.processes, patience_s):
                return True
        return False


def _gone(processes: tuple[ProcessId, ...] | list[ProcessId], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(process.alive for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def remove(layout: Layout) -> None:
    """Remove the record: the pool is down."""
    layout.record.unlink(missing_ok=True)


def fields_of(record: PoolRecord) -> dict[str, object]:
    """The record for JSON, without what only `down` needs."""
    document = dataclasses.asdict(record)
    del document["parts"]
    document["supervisor"] = record.supervisor.pid
    return document

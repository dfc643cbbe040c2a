"""Recording a trace for `replay`: wraps another backend and keeps what it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
)
from aliquot.agent.devices.base import DeviceBackend, DeviceLost, Discovery
from aliquot.agent.enforce.base import Cgroups, Enforcer
from tests.devices.replay import Frame, Sample, Trace

T = TypeVar("T")

MAX_FRAMES = 1_000_000


class Recorder:
    """See `base.DeviceBackend`. Only what has changed is kept; at most `MAX_FRAMES` changes."""

    def __init__(self, wrapped: DeviceBackend, now_ms: Callable[[], int] | None = None) -> None:
        self.name = f"record:{wrapped.name}"
        self.geometry = wrapped.geometry
        self._wrapped = wrapped
        self._now_ms = now_ms or (lambda: time.monotonic_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._start_ms = self._now_ms()
        self._frames: list[Frame] = []
        self._last: dict[tuple[str, str], object] = {}
        self._driver = DriverInfo("", "")
        self._discovery = Discovery(())

    @property
    def calls(self) -> int:
        """The wrapped backend's."""
        return self._wrapped.calls

    def open(self) -> DriverInfo:
        """Open the wrapped backend."""
        self._driver = self._wrapped.open()
        return self._driver

    def close(self) -> None:
        """Close the wrapped backend."""
        self._wrapped.close()

    def discover(self) -> Discovery:
        """The devices; the latest answer goes into the trace."""
        self._discovery = self._wrapped.discover()
        return self._discovery

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """The wrapped backend's."""
        return self._wrapped.visibility(devices)

    def unusable(self, device: DeviceInfo) -> str:
        """The wrapped backend's."""
        return self._wrapped.unusable(device)

    def enforcers(self, cgroups: Cgroups) -> Iterable[tuple[str, Enforcer]]:
        """The wrapped backend's."""
        return self._wrapped.enforcers(cgroups)

    def probe(self, device: DeviceInfo) -> Sequence[str]:
        """The wrapped backend's."""
        return self._wrapped.probe(device)

    def memory(self, uuid: str) -> MemorySample:
        """Ask and keep."""
        found = self._asked(uuid, self._wrapped.memory)
        self._keep(uuid, "memory", found, Sample(memory=found))
        return found

    def processes(self, uuid: str) -> ProcessList:
        """Ask and keep."""
        found = self._asked(uuid, self._wrapped.processes)
        self._keep(uuid, "processes", found, Sample(processes=found))
        return found

    def load(self, uuid: str) -> LoadSample:
        """Ask and keep."""
        found = self._asked(uuid, self._wrapped.load)
        self._keep(uuid, "load", found, Sample(load=found))
        return found

    def process_load(self, uuid: str) -> Mapping[int, int] | None:
        """Ask and keep."""
        found = self._asked(uuid, self._wrapped.process_load)
        if found is not None:
            self._keep(uuid, "process_load", found, Sample(process_load=dict(found)))
        return found

    def process_peaks(self, uuid: str) -> Mapping[int, int] | None:
        """Ask; not kept."""
        return self._wrapped.process_peaks(uuid)

    def health(self, uuid: str) -> HealthSample:
        """Ask and keep."""
        found = self._asked(uuid, self._wrapped.health)
        self._keep(uuid, "health", found, Sample(health=found))
        return found

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """Wait and keep."""
        events = tuple(self._wrapped.wait_events(timeout_ms))
        if events:
            self._add(Frame(self._elapsed_ms(), events=events))
        return events

    def deaf(self) -> str:
        """See `DeviceBackend`."""
        return self._wrapped.deaf()

    def trace(self) -> Trace:
        """What was recorded until now."""
        with self._lock:
            return Trace(self._discovery.devices, tuple(self._frames), self._driver)

    def write(self, path: Path) -> None:
        """Put the trace into a file. Raises `OSError`."""
        path.write_bytes(msgspec.json.encode(self.trace()))

    def _asked(self, uuid: str, ask: Callable[[str], T]) -> T:
        try:
            found = ask(uuid)
        except DeviceLost:
            # When it comes back, even what is as before must be said again.
            self._last = {key: value for key, value in self._last.items() if key[0] != uuid or key[1] == "lost"}
            self._keep(uuid, "lost", found=True, sample=Sample(lost=True))
            raise
        self._last.pop((uuid, "lost"), None)
        return found

    def _keep(self, uuid: str, what: str, found: object, sample: Sample) -> None:
        if self._last.get((uuid, what)) != found:
            self._last[uuid, what] = found
            self._add(Frame(self._elapsed_ms(), samples={uuid: sample}))

    def _add(self, frame: Frame) -> None:
        with self._lock:
            if len(self._frames) < MAX_FRAMES:
                self._frames.append(frame)

    def _elapsed_ms(self) -> int:
        return self._now_ms() - self._start_ms

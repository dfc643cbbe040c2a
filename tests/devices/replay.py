"""Devices as they were recorded: a trace of samples played back in real time, for studying what an agent would do.

A trace is a JSON object `{"format": "aliquot-device-trace", "version": 1, "driver": {...}, "devices": [...],
"frames": [{"at_ms": 0, "samples": {"<uuid>": {...}}, "events": [{"uuid": ..., "xid": ...}]}, ...]}` in the
words of `core.samples`. A device shows what the latest frame that names it says.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
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
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost, Discovery
from aliquot.agent.devices.plain import PlainBackend
from aliquot.agent.devices.visible import by_vendor

T = TypeVar("T")

FORMAT = "aliquot-device-trace"
VERSION = 1
MAX_TRACE_BYTES = 1 << 30


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen of one device in a frame."""

    memory: MemorySample | None = None
    processes: ProcessList | None = None
    load: LoadSample | None = None
    process_load: dict[int, int] | None = None
    health: HealthSample | None = None
    lost: bool = False


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment, in milliseconds after the first."""

    at_ms: int
    samples: dict[str, Sample] = {}
    events: tuple[DeviceEvent, ...] = ()


class Trace(msgspec.Struct, frozen=True):
    """A recording."""

    devices: tuple[DeviceInfo, ...]
    frames: tuple[Frame, ...]
    driver: DriverInfo = DriverInfo("", "")
    format: str = FORMAT
    version: int = VERSION


def read_trace(path: Path) -> Trace:
    """A trace from a file. Raises `BackendUnavailable` when it is not one."""
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise BackendUnavailable(f"{path} is larger than {MAX_TRACE_BYTES} bytes")
        trace = msgspec.json.decode(path.read_bytes(), type=Trace)
    except (OSError, msgspec.DecodeError) as error:
        raise BackendUnavailable(
            f"{path} is not a device trace: {error}", hint="see devices.replay.Trace for what it holds"
        ) from error
    if trace.format != FORMAT or trace.version > VERSION:
        raise BackendUnavailable(f"{path}: {trace.format} version {trace.version}; read up to {FORMAT} {VERSION}")
    if list(trace.frames) != sorted(trace.frames, key=lambda frame: frame.at_ms):
        raise BackendUnavailable(f"{path}: its frames are not in the order of time")
    return trace


class ReplayBackend(PlainBackend):
    """See `base.DeviceBackend`. `now_ms` is any clock that goes forward."""

    name = "replay"

    def __init__(self, trace: Trace, now_ms: Callable[[], int] | None = None) -> None:
        self._trace = trace
        self._now_ms = now_ms or (lambda: time.monotonic_ns() // 1_000_000)
        self._start_ms = 0
        self._told = -1
        self._times = [frame.at_ms for frame in trace.frames]
        self._known = {info.uuid for info in trace.devices}

    @property
    def calls(self) -> int:
        """There is no driver."""
        return 0

    def open(self) -> DriverInfo:
        """The first frame is now."""
        self._start_ms = self._now_ms()
        return self._trace.driver

    def close(self) -> None:
        """Nothing to let go of."""

    def discover(self) -> Discovery:
        """The recorded devices."""
        return Discovery(self._trace.devices)

    def visibility(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """As far as descriptions tell: how a driver would number them is not recorded."""
        return by_vendor(devices)

    def memory(self, uuid: str) -> MemorySample:
        """The latest recorded memory."""
        sample = self._latest(uuid, lambda each: each.memory)
        if sample is None:
            raise DeviceError("the trace knows nothing of its memory yet")
        return sample

    def processes(self, uuid: str) -> ProcessList:
        """The latest recorded processes."""
        sample = self._latest(uuid, lambda each: each.processes)
        if sample is None:
            raise DeviceError("the trace holds no list of processes")
        return sample

    def load(self, uuid: str) -> LoadSample:
        """The latest recorded load."""
        return self._latest(uuid, lambda each: each.load) or LoadSample()

    def process_load(self, uuid: str) -> dict[int, int] | None:
        """The latest recorded shares of time."""
        return self._latest(uuid, lambda each: each.process_load)

    def process_peaks(self, uuid: str) -> dict[int, int] | None:
        """As far as it was recorded: the means."""
        return self.process_load(uuid)

    def health(self, uuid: str) -> HealthSample:
        """The latest recorded health."""
        return self._latest(uuid, lambda each: each.health) or HealthSample()

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """Events of frames that have come by since the last call."""
        frames = self._trace.frames
        elapsed = self._now_ms() - self._start_ms
        for number in range(self._told + 1, len(frames)):
            if frames[number].at_ms > elapsed:
                break
            self._told = number
            if frames[number].events:
                return frames[number].events
        time.sleep(timeout_ms / 1000)
        return ()

    def _latest(self, uuid: str, pick: Callable[[Sample], T | None]) -> T | None:
        """The newest recorded value not after now. Raises `DeviceLost` where the newest sample says so."""
        if uuid not in self._known:
            raise DeviceError(f"{uuid} is not in the trace")
        elapsed = self._now_ms() - self._start_ms
        index = bisect.bisect_right(self._times, elapsed)
        newest = True
        for frame in reversed(self._trace.frames[:index]):
            sample = frame.samples.get(uuid)
            if sample is None:
                continue
            if newest and sample.lost:
                raise DeviceLost("the device is lost")
            newest = False
            value = pick(sample)
            if value is not None:
                return value
        return None

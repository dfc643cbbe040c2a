"""What the agent asks of devices of any vendor: one protocol, one module per implementation.

A backend is synchronous and may block, even for ever: drivers do. It is only called through `DeviceGuard`, from worker
threads, so its methods may be called from several threads at once, for *different* devices. They answer None for what
a driver does not offer, and raise `DeviceError` for what it can't answer now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aliquot.agent.core.partitioning import Card
from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
)
from aliquot.common.errors import AliquotError


class DeviceError(AliquotError):
    """A device, or its driver, did not answer."""

    reason = "DEVICE"


class DeviceLost(DeviceError):
    """The driver says that the device is gone, or can't be used before a reset."""

    reason = "DEVICE_LOST"


class BackendUnavailable(DeviceError):
    """There is no driver or library of this kind on this machine."""

    reason = "BACKEND_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is there."""

    devices: tuple[DeviceInfo, ...]
    problems: tuple[str, ...] = ()
    """Devices that could not be read, for people."""
    cards: tuple[Card, ...] = ()
    """Those in MIG mode, which can be cut in other ways."""
    card_problems: tuple[str, ...] = ()
    """Why the layout of some can't be read. It matters only where cards may be cut."""


class DeviceBackend(Protocol):
    """One kind of device. All methods raise `DeviceError` (or a subclass) and nothing else."""

    name: str

    @property
    def calls(self) -> int:
        """Calls into the driver so far: what looking costs."""

    def open(self) -> DriverInfo:
        """Load the library and talk to the driver."""

    def close(self) -> None:
        """Let go of the driver. Never raises."""

    def discover(self) -> Discovery:
        """Every device there is, with its parts where it is partitioned, and their links."""

    def memory(self, uuid: str) -> MemorySample:
        """Memory of one device now."""

    def processes(self, uuid: str) -> ProcessList:
        """Processes on one device now, each once."""

    def load(self, uuid: str) -> LoadSample:
        """How busy and how hot a device is."""

    def process_load(self, uuid: str) -> Mapping[int, int] | None:
        """Percent of the device's time by process, since the last call. Processes that used none may be missing."""

    def process_peaks(self, uuid: str) -> Mapping[int, int] | None:
        """The highest percent of any engine by process, of the samples that the last `process_load` was made of."""

    def health(self, uuid: str) -> HealthSample:
        """What a device says of its own state."""

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """Block until the driver reports something, at most so long. Called from a thread of its own."""

"""What the agent asks of devices of any vendor: one protocol, one module per implementation.

A backend is synchronous and may block, even for ever: drivers do. It is only called through `DeviceGuard`, from worker
threads, so its methods may be called from several threads at once, for *different* devices. They answer None for what
a driver does not offer, and raise `DeviceError` for what it can't answer now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.partitioning import Card, Instance, Profile, Recut
from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
)
from aliquot.agent.enforce.base import Cgroups, Enforcer
from aliquot.common.errors import AliquotError

Known = TypeVar("Known")

LEFT_OUT = "the agent's setting `leave_out` names it"


class DeviceError(AliquotError):
    """A device, or its driver, did not answer."""


def there(known: Mapping[str, Known], uuid: str) -> Known:
    """What is known of a device. Raises `DeviceError` where that is nothing."""
    found = known.get(uuid)
    if found is None:
        raise DeviceError(f"{uuid} is not there (any more)")
    return found


class DeviceLost(DeviceError):
    """The driver says that the device is gone, or can't be used before a reset."""


class BackendUnavailable(DeviceError):
    """There is no driver or library of this kind on this machine."""


class Discovery(msgspec.Struct, frozen=True):
    """What is there."""

    devices: tuple[DeviceInfo, ...]
    problems: tuple[str, ...] = ()
    """Devices that could not be read, for people."""
    cards: tuple[Card, ...] = ()
    """Those that can be cut in other ways."""
    card_problems: tuple[str, ...] = ()
    """Why the layout of some can't be read. It matters only where cards may be cut."""
    unleasable: tuple[str, ...] = ()
    """Cards that are well and can't be leased, each with the reason, for people."""
    measured: tuple[DeviceInfo, ...] = ()
    """Of these, the ones that answer like devices: they are measured, and no lease has part of them."""
    untold: tuple[str, ...] = ()
    """What can't be known of devices that are there, each with the reason, for people."""
    kinds: Mapping[str, str] = {}
    """By backend, where there are several: why it does not answer; empty: it does."""


def with_unread(
    known: Mapping[str, DeviceInfo], found: Iterable[DeviceInfo], problems: Collection[str]
) -> dict[str, DeviceInfo]:
    """By UUID, what there is: what was found and, where something could not be read, what was known of cards of which
    nothing was found. A card that can't be read is still there. Parts of one that answered, and what is missing
    without any problem, are gone.
    """
    devices = {info.uuid: info for info in found}
    seen = {info.physical_uuid for info in devices.values()}
    unread = {uuid: info for uuid, info in known.items() if problems and info.physical_uuid not in seen}
    return devices | unread


def without(found: Discovery, names: Collection[str]) -> Discovery:
    """What is there, but for devices that are named by UUID, model, number or PCI address, and their parts."""
    if not names:
        return found
    words = {name.lower() for name in names}

    def named(device: DeviceInfo) -> bool:
        own = (device.uuid, device.physical_uuid, device.model, str(device.index), device.pci_bus_id)
        return not words.isdisjoint(word.lower() for word in own)

    out = [device for device in found.devices if named(device)]
    cards = {device.physical_uuid for device in out}
    return replace(
        found,
        devices=tuple(device for device in found.devices if device not in out),
        cards=tuple(card for card in found.cards if card.uuid not in cards and card.uuid.lower() not in words),
        unleasable=(*found.unleasable, *(f"GPU {each.index} ({each.uuid}): {LEFT_OUT}" for each in out)),
    )


class Geometry(Protocol):
    """How cards of one kind are cut. Methods raise `EnforcementError` and `DeviceError`."""

    def read_instances(self, uuid: str, profiles: Collection[Profile]) -> tuple[Instance, ...]:
        """How a card is cut now."""

    def apply(self, uuid: str, recut: Recut) -> None:
        """Cut it as planned, or raise."""


class DeviceBackend(Protocol):
    """One kind of device. All methods raise `DeviceError` (or a subclass) and nothing else."""

    name: str

    @property
    def geometry(self) -> Geometry | None:
        """How its cards are cut; None: they can't be, by us."""

    @property
    def calls(self) -> int:
        """Calls into the driver so far: what looking costs."""

    def open(self) -> DriverInfo:
        """Load the library and talk to the driver."""

    def close(self) -> None:
        """Let go of the driver. Never raises."""

    def discover(self) -> Discovery:
        """Every device there is, with its parts where it is partitioned, and their links."""

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """The variables by which a program is shown these devices of this kind, in this order, and no others of it."""

    def unusable(self, device: DeviceInfo) -> str:
        """Why no program of this node can use a device, whatever it is given; empty: nothing is known to be in the way.
        Never waits for a driver.
        """

    def enforcers(self, cgroups: Cgroups) -> Iterable[tuple[str, Enforcer]]:
        """The tiers that are a vendor's own, each with the vendor's name in lower case. Asked once."""

    def probe(self, device: DeviceInfo) -> Sequence[str]:
        """The program by which `aliquot doctor` tries to take a device's memory: a module and its arguments, as
        `doctor.probe` takes and answers them. Empty: there is none.
        """

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

    def deaf(self) -> str:
        """Why events of some devices, or of all, will not be heard; empty: as far as drivers of this kind tell of any,
        they are. Asked after `wait_events`, from its thread.
        """

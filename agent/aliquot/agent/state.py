"""The present state of the node: one mutable object, owned by the event loop, read by all parts.

Only the poller writes samples, only the controller writes reservations. `None` is "not known".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from aliquot.agent.core.accounting import DeviceUsage
from aliquot.agent.core.energy import Meter
from aliquot.agent.core.enforcement import Decision
from aliquot.agent.core.health import Health
from aliquot.agent.core.model import NOTHING_YET, Actual, Holder, Intent, Reservation
from aliquot.agent.core.partitioning import Card, CutResult
from aliquot.agent.core.reservations import Book
from aliquot.agent.core.samples import DeviceInfo, DriverInfo, HealthSample, LoadSample, MemorySample
from aliquot.agent.core.signals import XidSeverity
from aliquot.common.duties import Duties

MAX_NOTES = 64
MAX_ACTS = 256


class DeviceState(msgspec.Struct):
    """One device: what it is, and what was last seen of it."""

    info: DeviceInfo
    health: Health = msgspec.field(default_factory=Health)
    memory: MemorySample | None = None
    usage: DeviceUsage | None = None
    load: LoadSample = msgspec.field(default_factory=LoadSample)
    process_percent: Mapping[int, int] | None = None
    """By pid: how much of the device's time each process used of late."""
    process_peaks: Mapping[int, int] | None = None
    """By pid: the highest use of any engine since the last look."""
    mean_power_mw: int | None = None
    """Between the last two samples of its load, by its counter of energy."""
    health_sample: HealthSample = msgspec.field(default_factory=HealthSample)
    sampled_ms: int | None = None
    """Wall clock of the last memory sample."""
    sampled_monotonic_ms: int = 0
    blind: str = ""
    """Why the memory of single processes can't be seen here; empty when it can."""
    last_xid: int | None = None
    xids: Counter[XidSeverity] = msgspec.field(default_factory=Counter)
    """Reported since the agent started."""


class EnforcementAct(msgspec.Struct, frozen=True):
    """One decision that was carried out, and when."""

    at_ms: int
    decision: Decision


class NodeState(msgspec.Struct):
    """The node."""

    node_id: str
    name: str
    boot_id: str
    driver: DriverInfo = msgspec.field(default_factory=lambda: DriverInfo("", ""))
    devices: dict[str, DeviceState] = {}
    measured: dict[str, DeviceState] = {}
    """Cards that can't be leased and are measured all the same. Nobody but the node's own metrics is told."""
    book: Book = msgspec.field(default_factory=Book)
    actual: dict[str, Actual] = {}
    notes: dict[str, str] = {}
    """By subject; see `note`."""
    duties: Duties = msgspec.field(default_factory=Duties)
    happened: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_NOTES))
    """What went wrong, latest last: damaged files, lost devices."""
    acts: deque[EnforcementAct] = msgspec.field(default_factory=lambda: deque(maxlen=MAX_ACTS))
    """What enforcement did, latest last, so that launchers can say why a program was stopped."""
    meters: dict[str, Meter] = {}
    """Of energy, by card."""
    cards: dict[str, Card] = {}
    """Those in MIG mode, by UUID."""
    card_problems: tuple[str, ...] = ()
    cuts: dict[str, CutResult] = {}
    """What became of the last order to cut each card."""
    condemned: dict[str, str] = {}
    """By lease: why all that it has here is to end for good. The watchdog puts it in, the controller takes it out."""
    coordinator: str = ""
    connected: bool = False

    def infos(self) -> dict[str, DeviceInfo]:
        """Every device's description, by UUID."""
        return {uuid: device.info for uuid, device in self.devices.items()}

    def note(self, subject: str, text: str) -> None:
        """What this agent can't do here, and why; empty: it can again. The coordinator is told of a change."""
        if text == self.notes.get(subject, ""):
            return
        if text:
            self.notes[subject] = text
        else:
            del self.notes[subject]
        self.duties.changed()

    def conditions(self) -> dict[str, str]:
        """All that keeps this node from being as it should, by subject: what people are told of it."""
        return self.notes | self.duties.failing()

    def polled(self) -> dict[str, DeviceState]:
        """Every device that is polled, by UUID."""
        return self.devices | self.measured

    def actual_of(self, slice_id: str) -> Actual:
        """What is true of a slice; nothing yet for a new one."""
        return self.actual.get(slice_id, NOTHING_YET)

    def reserved_on(self, device_uuid: str) -> list[Reservation]:
        """Reservations that take part of a device."""
        return self.book.on_device(device_uuid)

    def leased(self, device_uuid: str) -> bool:
        """Whether any reservation takes part of a device."""
        return bool(self.book.on_device(device_uuid))

    def holders(self) -> frozenset[Holder]:
        """Whoever has a reservation here."""
        return self.book.holders()

    def held(self, holder: Holder) -> bool:
        """Whether a reservation stands behind a holder."""
        return holder in self.book.holders()

    def running(self, holder: Holder) -> list[Reservation]:
        """The holder's reservations that are to run."""
        return [record for record in self.book.of_holder(holder) if record.intent is Intent.RUN]

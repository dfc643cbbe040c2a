"""What the driver reports by itself: counted, logged, and a reason to ask it how the device is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from aliquot.agent.core import health
from aliquot.agent.core.kernel_log import ALL_CARDS, HARMLESS
from aliquot.agent.core.reports import LeaseHit
from aliquot.agent.core.samples import DeviceEvent, EventKind, HealthSample
from aliquot.agent.core.signals import OFF_THE_BUS, PROGRAM, XidSeverity, severity_of, signal_of
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.parts import Ground
from aliquot.agent.poller import Poller
from aliquot.agent.state import DeviceState
from aliquot.common.signs import Severity

log = logging.getLogger(__name__)

LOGGED_EVERY_MS = 5 * 60_000
REMEMBERED_MAX = 1_000
MERGED_MS = 5 * 60_000
"""What both ears hear of one device within this time is one event."""
_OF_NO_CONCERN = frozenset({XidSeverity.NONE, XidSeverity.PROGRAM})


class _Heard(msgspec.Struct):
    """An XID of a device, as one of the two ears heard it first."""

    by_log: bool
    at_ms: int
    """When that ear last did."""
    believed: bool
    """Whether the driver told it, or the card confirmed it."""


class DriverEvents:
    """Takes events one after the other, in the event loop."""

    def __init__(self, ground: Ground, mailbox: Mailbox, poller: Poller, lease_of: Callable[[int], str]) -> None:
        """`lease_of` names the lease that a process belongs to, or nothing."""
        self.state, self.guard, self.backend = ground.state, ground.guard, ground.backend
        self.clock = ground.world.clock
        self.mailbox, self.poller, self.lease_of = mailbox, poller, lease_of
        self._heard: dict[tuple[str, int], _Heard] = {}
        """By device and XID."""
        self._hits_ms: dict[tuple[str, str, int], int] = {}
        self._logged_ms: dict[tuple[str, DeviceEvent], int] = {}
        self._unlogged: Counter[tuple[str, DeviceEvent]] = Counter()

    async def take(self, event: DeviceEvent, times: int = 1) -> None:
        """An event has come, so many times."""
        if not event.uuid:
            log.warning("the driver reported %s without saying of which device", event)
            return
        for device in list(self.state.devices.values()):
            if event.uuid in (device.info.physical_uuid, ALL_CARDS) and _concerns(device, event):
                if event.kind is not EventKind.XID:
                    self._log(device.info.uuid, event, times)
                    self._take_other(device, event.kind)
                    continue
                self._tell_lease(device, event)
                before = self._heard_before(device.info.uuid, event)
                if before is None:
                    self._log(device.info.uuid, event, times)
                    self._count(device, event.xid, times)
                elif before.believed or event.from_log:
                    continue
                # What the log alone has told was a reason to ask. The driver's word, when it comes, is more.
                if severity_of(event.xid) not in _OF_NO_CONCERN:
                    await self._take_xid(device, event)

    def _heard_before(self, uuid: str, event: DeviceEvent) -> _Heard | None:
        """What the other ear has told of this: the driver and the log tell most XIDs both. None: it is new."""
        key, now_ms = (uuid, event.xid), self.clock.monotonic_ms()
        before = self._heard.get(key)
        if before is not None and before.by_log is not event.from_log and now_ms - before.at_ms < MERGED_MS:
            return before
        if len(self._heard) >= REMEMBERED_MAX:
            self._heard.clear()
        self._heard[key] = _Heard(event.from_log, now_ms, believed=not event.from_log)
        return None

    def _tell_lease(self, device: DeviceState, event: DeviceEvent) -> None:
        """Its holder hears what has hit a lease: by the pid or, where that is not told, if it is alone there."""
        signal = signal_of(event.xid)
        if signal is None or signal.severity is not Severity.LEASE:
            return
        uuid = device.info.uuid
        leases = {record.spec.lease_id for record in self.state.reserved_on(uuid)}
        lease_id = self.lease_of(event.pid) or _by_use(device, event.pid) if event.pid is not None else ""
        if not lease_id and event.pid is None and len(leases) == 1:
            (lease_id,) = leases
        if lease_id not in leases:
            return
        key, now_ms = (lease_id, uuid, event.xid), self.clock.monotonic_ms()
        last_ms = self._hits_ms.get(key)
        if last_ms is not None and now_ms - last_ms < MERGED_MS:
            return
        if len(self._hits_ms) >= REMEMBERED_MAX:
            self._hits_ms.clear()
        self._hits_ms[key] = now_ms
        text = f"XID {event.xid} on {uuid}: restart the application"
        self.mailbox.hit(LeaseHit(uuid, lease_id, text, suspicious=signal is PROGRAM))

    def _count(self, device: DeviceState, xid: int, times: int) -> None:
        device.last_xid = xid
        device.xids[severity_of(xid)] += times

    async def _take_xid(self, device: DeviceState, event: DeviceEvent) -> None:
        """The driver's word counts. The log's is a reason to ask: its lines can be forged, so that a card is taken out
        for one only where the card or its driver confirms that something is wrong.
        """
        uuid = device.info.uuid
        confirmed = not event.from_log
        try:
            sample = await self.guard.run(uuid, partial(self.backend.health, uuid))
            confirmed = confirmed or health.complains(sample)
        except DeviceError:
            sample, confirmed = HealthSample(), True  # it does not answer: that is one more sign
        if confirmed and (heard := self._heard.get((uuid, event.xid))) is not None:
            heard.believed = True
        if confirmed and event.said != HARMLESS:
            now_ms = self.clock.monotonic_ms()
            self.poller.set_health(
                device, health.on_xid(device.health, event.xid, sample.recovery_action, now_ms, self.poller.ignored)
            )
        self._tell(uuid)

    def _take_other(self, device: DeviceState, kind: EventKind) -> None:
        if kind is EventKind.UNAVAILABLE:
            now_ms = self.clock.monotonic_ms()
            said = "the driver reports it as unavailable"
            self.poller.set_health(
                device, health.on_failure(device.health, said, now_ms, OFF_THE_BUS, ignored=self.poller.ignored)
            )
        self._tell(device.info.uuid)

    def _tell(self, uuid: str) -> None:
        self.poller.ask_health_soon(uuid)
        self.mailbox.device_polled(uuid)

    def _log(self, uuid: str, event: DeviceEvent, times: int) -> None:
        """Of a storm a line each `LOGGED_EVERY_MS`, with how often it has come since the line before."""
        now_ms, key = self.clock.monotonic_ms(), (uuid, event)
        if len(self._unlogged) >= REMEMBERED_MAX:
            self._logged_ms.clear()
            self._unlogged.clear()
        self._unlogged[key] += times
        last_ms = self._logged_ms.get(key)
        if last_ms is None or now_ms - last_ms >= LOGGED_EVERY_MS:
            self._logged_ms[key] = now_ms
            log.warning("device %s reported %s (%d times)", uuid, event, self._unlogged[key])
            self._unlogged[key] = 0


def _by_use(device: DeviceState, pid: int) -> str:
    """The lease whose process this was when the device was last looked at: it may be gone by now."""
    for piece in device.usage.slices if device.usage is not None else ():
        if any(use.pid == pid for use in piece.uses):
            return piece.reservation.spec.lease_id
    return ""


def _concerns(device: DeviceState, event: DeviceEvent) -> bool:
    """Whether an event of the device's card is about this part of it."""
    instance = device.info.gpu_instance_id
    return None in (event.gpu_instance_id, instance) or event.gpu_instance_id == instance

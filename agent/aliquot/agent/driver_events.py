"""What the driver reports by itself: counted, logged, and a reason to ask it how the device is."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

from aliquot.agent.core import health
from aliquot.agent.core.samples import DeviceEvent, EventKind, HealthSample
from aliquot.agent.core.xid import XidSeverity, severity_of
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.poller import Poller
from aliquot.agent.state import DeviceState, NodeState
from aliquot.common.clock import Clock

log = logging.getLogger(__name__)

LOGGED_EVERY_MS = 5 * 60_000
REMEMBERED_MAX = 1_000
_OF_NO_CONCERN = frozenset({XidSeverity.NONE, XidSeverity.PROGRAM})


class DriverEvents:
    """Takes events one after the other, in the event loop."""

    def __init__(
        self,
        *,
        state: NodeState,
        backend: DeviceBackend,
        guard: DeviceGuard,
        poller: Poller,
        mailbox: Mailbox,
        clock: Clock,
    ) -> None:
        self._state = state
        self._backend = backend
        self._guard = guard
        self._poller = poller
        self._mailbox = mailbox
        self._clock = clock
        self._logged_ms: dict[tuple[str, DeviceEvent], int] = {}
        self._unlogged: Counter[tuple[str, DeviceEvent]] = Counter()

    async def take(self, event: DeviceEvent, times: int = 1) -> None:
        """An event has come, so many times."""
        if not event.uuid:
            log.warning("the driver reported %s without saying of which device", event)
            return
        for device in list(self._state.devices.values()):
            if device.info.physical_uuid == event.uuid and _concerns(device, event):
                self._log(device.info.uuid, event, times)
                if event.kind is not EventKind.XID:
                    self._take_other(device, event.kind)
                elif self._count(device, event.xid, times) not in _OF_NO_CONCERN:
                    await self._take_xid(device, event.xid)

    def _count(self, device: DeviceState, xid: int, times: int) -> XidSeverity:
        severity = severity_of(xid)
        device.last_xid = xid
        device.xids[severity] += times
        return severity

    async def _take_xid(self, device: DeviceState, xid: int) -> None:
        uuid = device.info.uuid
        try:
            sample = await self._guard.run(uuid, partial(self._backend.health, uuid))
        except DeviceError:
            sample = HealthSample()
        now_ms = self._clock.monotonic_ms()
        self._poller.set_health(device, health.on_xid(device.health, xid, sample.recovery_action, now_ms))
        self._tell(uuid)

    def _take_other(self, device: DeviceState, kind: EventKind) -> None:
        if kind is EventKind.UNAVAILABLE:
            now_ms = self._clock.monotonic_ms()
            said = "the driver reports it as unavailable"
            self._poller.set_health(device, health.on_failure(device.health, said, now_ms))
        self._tell(device.info.uuid)

    def _tell(self, uuid: str) -> None:
        self._poller.ask_health_soon(uuid)
        self._mailbox.device_polled(uuid)

    def _log(self, uuid: str, event: DeviceEvent, times: int) -> None:
        """Of a storm a line each `LOGGED_EVERY_MS`, with how often it has come since the line before."""
        now_ms, key = self._clock.monotonic_ms(), (uuid, event)
        if len(self._unlogged) >= REMEMBERED_MAX:
            self._logged_ms.clear()
            self._unlogged.clear()
        self._unlogged[key] += times
        last_ms = self._logged_ms.get(key)
        if last_ms is None or now_ms - last_ms >= LOGGED_EVERY_MS:
            self._logged_ms[key] = now_ms
            log.warning("device %s reported %s (%d times)", uuid, event, self._unlogged[key])
            self._unlogged[key] = 0


def _concerns(device: DeviceState, event: DeviceEvent) -> bool:
    """Whether an event of the device's card is about this part of it."""
    instance = device.info.gpu_instance_id
    return None in (event.gpu_instance_id, instance) or event.gpu_instance_id == instance

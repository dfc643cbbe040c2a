"""What the driver reports by itself. Events of MIG instances arrive on their card, with the instance's id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pynvml

from aliquot.agent.core.samples import DeviceEvent, EventKind
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.nvml_query import Query, text

_NO_INSTANCE = 0xFFFFFFFF
_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeGpuUnavailableError: EventKind.UNAVAILABLE,
    pynvml.nvmlEventTypeGpuRecoveryAction: EventKind.ASK,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.ASK,
    pynvml.nvmlEventTypeDramRetirementFailure: EventKind.ASK,
    pynvml.nvmlEventTypeFatalPoisonError: EventKind.ASK,
}
"""Of NVML's types those that say something about health; clocks and power states change all the time."""


class EventSource:
    """One event set over all cards. Used from the events' own thread."""

    def __init__(self, query: Query, cards: Mapping[str, object]) -> None:
        self._query = query
        self._set: Any = query.ask("", "EventSetCreate", pynvml.nvmlEventSetCreate)
        self.listening = [uuid for uuid, handle in cards.items() if self._register(uuid, handle)]
        """Cards whose events will be heard."""
        self.deaf = _named([uuid for uuid in cards if uuid not in self.listening])
        """Why those of others will not; empty: there are no others."""

    def _register(self, uuid: str, handle: object) -> bool:
        if self._set is None:
            return False
        try:
            supported = self._query.ask(uuid, "SupportedEventTypes", pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            wanted = (supported or 0) & sum(_KINDS)
            if not wanted:
                return False
            self._query.ask(uuid, "RegisterEvents", pynvml.nvmlDeviceRegisterEvents, handle, wanted, self._set)
        except DeviceError:
            return False
        return self._query.offers(uuid, "RegisterEvents")

    def wait(self, timeout_ms: int) -> list[DeviceEvent]:
        """At most one event. Raises `DeviceError`; a time-out is an empty answer."""
        if not self.listening:
            time.sleep(timeout_ms / 1000)
            return []
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError_Timeout:
            return []
        except pynvml.NVMLError as error:
            raise DeviceError(f"EventSetWait: {error}") from error
        kind = _KINDS.get(data.eventType)
        if kind is None:
            return []
        instance = data.gpuInstanceId
        return [
            DeviceEvent(
                uuid=self._uuid_of(data.device),
                xid=int(data.eventData) if kind is EventKind.XID else 0,
                gpu_instance_id=None if instance == _NO_INSTANCE else instance,
                kind=kind,
            )
        ]

    def _uuid_of(self, device: object) -> str:
        """Never remembered as not offered: the handle may be any card's, and one that is refused is not all."""
        if not device:
            return ""
        try:
            return text(self._query.ask("", "UUID", pynvml.nvmlDeviceGetUUID, device, remember=False) or "")
        except DeviceError:
            return ""

    def close(self) -> None:
        """Free the set."""
        if self._set is not None:
            try:
                pynvml.nvmlEventSetFree(self._set)
            except pynvml.NVMLError:
                return


def _named(deaf: list[str]) -> str:
    return f"the driver takes no wishes for events of {', '.join(sorted(deaf))}" if deaf else ""

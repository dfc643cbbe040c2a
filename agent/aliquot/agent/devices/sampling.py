"""Turns a driver's list of processes on a device into what each lease holds there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, account
from aliquot.agent.core.attribution import Attributor, ProcessFacts
from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import MemorySample, ProcessList
from aliquot.agent.processes.containment import Containment
from aliquot.agent.state import NodeState
from aliquot.common.limits import WHOLE_SHARE_MILLI


class Attribution(msgspec.Struct, eq=False):
    """Sorts listed processes by lease."""

    state: NodeState
    containment: Containment
    _last: dict[tuple[str, int], tuple[Holder, ...]] = {}

    def usage(
        self,
        device_uuid: str,
        memory: MemorySample | None,
        listed: ProcessList,
        facts: Mapping[int, ProcessFacts] | None = None,
    ) -> DeviceUsage:
        """Who holds what of a device's memory. `facts`: of listed processes, as they were found when they were listed:
        some may have ended since.
        """
        uses: list[ProcessUse] = []
        if listed.processes:
            scan = self.containment.attributor(facts or {})
            uses = [self._use(device_uuid, scan, sample.pid, sample.memory_bytes) for sample in listed.processes]
            self.containment.learn(scan)
        present = {(device_uuid, sample.pid) for sample in listed.processes}
        gone = [key for key in self._last if key[0] == device_uuid and key not in present]
        for key in gone:
            del self._last[key]
        device = self.state.devices.get(device_uuid)
        return account(
            device_uuid,
            memory,
            uses,
            self.state.reserved_on(device_uuid),
            complete=listed.complete,
            compute_milli=device.info.compute_milli if device is not None else WHOLE_SHARE_MILLI,
        )

    def _use(self, device_uuid: str, scan: Attributor, pid: int, memory_bytes: int | None) -> ProcessUse:
        belonging = scan.belonging(pid)
        if belonging is not None:
            self._last[device_uuid, pid] = belonging.holders
            return ProcessUse(pid, belonging.process, memory_bytes, belonging.holders)
        facts = scan.facts(pid)
        if facts is not None:
            return ProcessUse(pid, facts.key, memory_bytes)
        # It ended between the driver's answer and our look at it, or lives where we can't see it. In the
        # first case it counts once more as what it was; it can't be identified, so it can't be signalled.
        return ProcessUse(pid, None, memory_bytes, self._last.get((device_uuid, pid), ()))

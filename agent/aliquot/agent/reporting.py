"""What the stream tells: snapshots of the whole node, and what has changed since."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.agent import machine
from aliquot.agent.controller import Controller
from aliquot.agent.core.deltas import DeltaTracker
from aliquot.agent.core.reports import report_of
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.partitions import Partitions
from aliquot.agent.state import NodeState
from aliquot.agent.wire import (
    card_to_wire,
    delta_to_wire,
    device_report,
    device_to_wire,
    slice_report_to_wire,
    uses_to_wire,
)
from aliquot.common.clock import Clock
from aliquot.v1 import agent_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class Description:
    """What an administrator says of the node."""

    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    failure_domain: str = ""
    version: str = ""


class Reporter:
    """Makes the messages of one session. A new session starts with a snapshot, which resets it."""

    def __init__(
        self,
        state: NodeState,
        controller: Controller,
        limits: LimitSetter,
        partitions: Partitions,
        description: Description,
        clock: Clock,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._controller = controller
        self._limits = limits
        self._description = description
        self._clock = clock
        self._tracker = DeltaTracker(min_interval_ms=1000)
        self._news: set[str] = set()
        """Devices of which there is something to tell. The others need no look when something is sent."""

    @property
    def version(self) -> str:
        """The agent's version."""
        return self._description.version

    @property
    def seq(self) -> int:
        """Of the last snapshot or delta."""
        return self._tracker.seq

    def set_interval(self, min_interval_ms: int) -> None:
        """The coordinator says how often it can listen."""
        self._tracker.min_interval_ms = min_interval_ms

    def snapshot(self, session_epoch: int) -> agent_pb2.Snapshot:
        """Everything, for this session. Confirmations that waited are in it."""
        reports = {uuid: device_report(device) for uuid, device in self._state.devices.items()}
        self._controller.reports.clear()
        self._news.clear()
        seq = self._tracker.reset(reports.values(), self._clock.monotonic_ms())
        records = [report_of(record, self._state.actual_of(record.slice_id)) for record in self._state.book]
        return agent_pb2.Snapshot(
            session_epoch=session_epoch,
            seq=seq,
            node=types_pb2.Node(
                node_id=self._state.node_id,
                name=self._state.name,
                pool=self._description.pool,
                labels=dict(self._description.labels),
                failure_domain=self._description.failure_domain,
                devices=[
                    device_to_wire(device.info, reports[uuid], self._limits.tiers_of(uuid))
                    for uuid, device in self._state.devices.items()
                ],
                cards=[card_to_wire(card, self._state.cuts.get(card.uuid)) for card in self._partitions.offer()],
                cpu_milli=machine.cpu_milli(),
                host_memory_bytes=machine.memory_bytes(),
                agent_version=self._description.version,
                driver_version=self._state.driver.driver_version,
                reason="; ".join(self._state.notes.values()),
            ),
            slices=[slice_report_to_wire(record) for record in records],
            leader_epoch=self._controller.leader_epoch,
            uses=[use for report in reports.values() for use in uses_to_wire(report)],
        )

    def seen(self, uuid: str) -> bool:
        """A device was looked at. True: there is something to tell of it that there was not before."""
        device = self._state.devices.get(uuid)
        if device is None or uuid in self._news:
            return False
        if not self._tracker.worth(device_report(device), self._clock.monotonic_ms()):
            return False
        self._news.add(uuid)
        return True

    def delta_in_s(self) -> float:
        """How long to wait before asking for a delta; infinite while there is nothing to tell."""
        return self._tracker.wait_ms(self._clock.monotonic_ms()) / 1000 if self._news else math.inf

    def delta(self) -> agent_pb2.Delta | None:
        """What has changed enough since the last message; None: nothing, or it is too early."""
        now_ms = self._clock.monotonic_ms()
        if not self._news or self._tracker.wait_ms(now_ms):
            return None
        devices = self._state.devices
        reports = {uuid: device_report(devices[uuid]) for uuid in devices if uuid in self._news}
        self._news.clear()
        changed = self._tracker.offer(reports, now_ms)
        return delta_to_wire(self._tracker.seq, changed) if changed else None

    def confirmations(self, session_epoch: int) -> agent_pb2.SliceReports | None:
        """The next confirmations in line; None when there are none."""
        reports = self._controller.reports.take()
        if not reports:
            return None
        return agent_pb2.SliceReports(
            session_epoch=session_epoch, reports=[slice_report_to_wire(report) for report in reports]
        )

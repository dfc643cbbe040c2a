"""Makes the messages to the coordinator: snapshots of the node, and what has changed since."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.agent.care import Care
from aliquot.agent.core.reports import report_of
from aliquot.agent.disk.identity import Identity
from aliquot.agent.hosting.base import Host
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.partitions import Partitions
from aliquot.agent.state import NodeState
from aliquot.agent.wire import (
    CARD,
    CARE_RESULT,
    CONFIRMATION,
    DEVICE,
    HIT,
    HOST_NAMES,
    REPORT,
    USE,
    Beside,
    device_report,
    overtime_to_wire,
    served_to_wire,
)
from aliquot.agent.world import Machine
from aliquot.common.clock import Clock
from aliquot.v1 import agent_pb2, types_pb2

CONDITIONS_MAX = 32


class Description(msgspec.Struct, frozen=True):
    """What an administrator says of the node."""

    pool: str = ""
    labels: Mapping[str, str] = {}
    failure_domain: str = ""
    version: str = ""


class Reporter:
    """Makes the messages of one session. A new session starts with a snapshot, which resets it."""

    def __init__(
        self,
        *,
        state: NodeState,
        identity: Identity,
        limits: LimitSetter,
        partitions: Partitions,
        host: Host,
        care: Care,
        mailbox: Mailbox,
        description: Description,
        machine: Machine,
        clock: Clock,
    ) -> None:
        self._state = state
        self._identity = identity
        self._limits = limits
        self._partitions = partitions
        self._host = host
        self._care = care
        self._mailbox = mailbox
        self._description = description
        self._machine = machine
        self._clock = clock

    @property
    def version(self) -> str:
        """The agent's version."""
        return self._description.version

    def snapshot(self, session_epoch: int) -> agent_pb2.Snapshot:
        """Everything, for this session. Confirmations that waited are in it."""
        reports = {uuid: device_report(device) for uuid, device in self._state.devices.items()}
        seq = self._mailbox.take_all(reports)
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
                    DEVICE.message(device.info, Beside(reports[uuid], self._limits.tiers_of(uuid)))
                    for uuid, device in self._state.devices.items()
                ],
                cards=[CARD.message(card, self._state.cuts.get(card.uuid)) for card in self._partitions.offer()],
                cpu_milli=self._machine.cpu_milli(),
                host_memory_bytes=self._machine.memory_bytes(),
                agent_version=self._description.version,
                driver_version=self._state.driver.driver_version,
                conditions=[
                    types_pb2.NodeCondition(subject=subject, text=text)
                    for subject, text in list(self._state.conditions().items())[:CONDITIONS_MAX]
                ],
                remedies=self._care.offered,
                lends=True,
                care=[CARE_RESULT.message(result, number) for number, result in self._care.results.items()],
                serves=[serve for serve, name in HOST_NAMES.items() if name in self._host.offered()],
            ),
            slices=[CONFIRMATION.message(record) for record in records],
            leader_epoch=self._identity.leader_epoch,
            uses=[USE.message(use) for report in reports.values() for use in report.slices],
        )

    def delta(self) -> agent_pb2.Delta | None:
        """What has changed enough since the last message; None: nothing, or it is too early."""
        changed = self._mailbox.take_devices()
        if not changed:
            return None
        return agent_pb2.Delta(seq=self._mailbox.seq, devices=map(REPORT.message, changed))

    def served(self) -> agent_pb2.Served | None:
        """What has changed of members that are served; None: nothing."""
        reports = self._mailbox.take_served()
        return agent_pb2.Served(uses=map(served_to_wire, reports)) if reports else None

    def confirmations(self, session_epoch: int) -> agent_pb2.SliceReports | None:
        """The next confirmations in line; None when there are none."""
        reports, hits = self._mailbox.take_confirmations(), self._mailbox.take_hits()
        overtime = self._mailbox.take_overtime()
        if not (reports or hits or overtime):
            return None
        return agent_pb2.SliceReports(
            session_epoch=session_epoch,
            reports=[CONFIRMATION.message(report) for report in reports],
            hits=map(HIT.message, hits),
            overtime=overtime_to_wire(overtime, self._clock.monotonic_ms()),
        )

"""Makes the messages to the coordinator: snapshots of the node, and what has changed since."""

from __future__ import annotations

from aliquot.agent.care import Care
from aliquot.agent.core.reports import report_of
from aliquot.agent.hosting.base import Host
from aliquot.agent.partitions import Partitions
from aliquot.agent.parts import Ground, Holding
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
from aliquot.v1 import agent_pb2, types_pb2

CONDITIONS_MAX = 32


class Reporter:
    """Makes the messages of one session. A new session starts with a snapshot, which resets it."""

    def __init__(self, ground: Ground, holding: Holding, host: Host, partitions: Partitions, care: Care) -> None:
        self._ground = ground
        self.state, self.mailbox, self.limits = ground.state, holding.mailbox, holding.limits
        self.host, self.partitions, self.care = host, partitions, care

    def snapshot(self, session_epoch: int) -> agent_pb2.Snapshot:
        """Everything, for this session. Confirmations that waited are in it."""
        reports = {uuid: device_report(device, self.state.actual) for uuid, device in self.state.devices.items()}
        seq = self.mailbox.take_all(reports)
        records = [report_of(record, self.state.actual_of(record.slice_id)) for record in self.state.book]
        settings, world = self._ground.settings, self._ground.world
        return agent_pb2.Snapshot(
            session_epoch=session_epoch,
            seq=seq,
            node=types_pb2.Node(
                node_id=self.state.node_id,
                name=self.state.name,
                pool=settings.pool,
                labels=settings.labels(),
                failure_domain=settings.failure_domain,
                devices=[
                    DEVICE.message(device.info, Beside(reports[uuid], self.limits.tiers_of(uuid)))
                    for uuid, device in self.state.devices.items()
                ],
                cards=[CARD.message(card, self.state.cuts.get(card.uuid)) for card in self.partitions.offer()],
                cpu_milli=world.machine.cpu_milli(),
                host_memory_bytes=world.machine.memory_bytes(),
                agent_version=world.version,
                driver_version=self.state.driver.driver_version,
                conditions=[
                    types_pb2.NodeCondition(subject=subject, text=text)
                    for subject, text in list(self.state.conditions().items())[:CONDITIONS_MAX]
                ],
                remedies=self.care.offered,
                lends=True,
                care=[CARE_RESULT.message(result, number) for number, result in self.care.results.items()],
                serves=[serve for serve, name in HOST_NAMES.items() if name in self.host.offered()],
            ),
            slices=[CONFIRMATION.message(record) for record in records],
            leader_epoch=self._ground.identity.leader_epoch,
            uses=[USE.message(use) for report in reports.values() for use in report.slices],
        )

    def delta(self) -> agent_pb2.Delta | None:
        """What has changed enough since the last message; None: nothing, or it is too early."""
        changed = self.mailbox.take_devices()
        if not changed:
            return None
        return agent_pb2.Delta(seq=self.mailbox.seq, devices=map(REPORT.message, changed))

    def served(self) -> agent_pb2.Served | None:
        """What has changed of members that are served; None: nothing."""
        reports = self.mailbox.take_served()
        return agent_pb2.Served(uses=map(served_to_wire, reports)) if reports else None

    def confirmations(self, session_epoch: int) -> agent_pb2.SliceReports | None:
        """The next confirmations in line; None when there are none."""
        reports, hits = self.mailbox.take_confirmations(), self.mailbox.take_hits()
        overtime = self.mailbox.take_overtime()
        if not (reports or hits or overtime):
            return None
        return agent_pb2.SliceReports(
            session_epoch=session_epoch,
            reports=[CONFIRMATION.message(report) for report in reports],
            hits=map(HIT.message, hits),
            overtime=overtime_to_wire(overtime, self._ground.world.clock.monotonic_ms()),
        )

"""What agents say beside what their disks hold: whatever an agent has said must still be so after a loss of power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from tests.simulation.auditor.auditor import Auditor
    from tests.simulation.sim.network import Connection
    from tests.simulation.sim.nodes import SimNode

_OVER = (agent_pb2.SLICE_STATUS_GONE, agent_pb2.SLICE_STATUS_FAILED)


class DisksAudit:
    """Reservations that a loss of power would leave, by host."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self._durable: dict[str, set[str]] = {}
        self._ever: dict[str, set[str]] = {}
        self._at_start: dict[str, set[str]] = {}
        """When its agent was started last."""
        self._obeyed: dict[str, int] = {}
        """The highest leader epoch of what was written down, where the disk had room for the epoch itself."""

    def attach(self, node: SimNode) -> None:
        """Listen to one node."""
        self._durable[node.host], self._ever[node.host], self._at_start[node.host] = set(), set(), set()
        self._obeyed[node.host] = 0

    def starts(self, node: SimNode) -> None:
        """Its agent is about to be started."""
        self._at_start[node.host] = set(self._durable[node.host])
        epoch, obeyed = node.disk.leader_epoch, self._obeyed[node.host]
        if epoch < obeyed:
            self._auditor.violation(f"{node.node_id} knows of leader epoch {epoch} after it obeyed {obeyed}")

    def emptied(self, node: SimNode) -> None:
        """Somebody removed all that it had."""
        self._obeyed[node.host] = 0

    def saved(self, node: SimNode, record: Any) -> None:
        """A reservation would be there after a loss of power."""
        self._durable[node.host].add(record.slice_id)
        self._ever[node.host].add(record.slice_id)
        if node.disk.leader_epoch >= record.leader_epoch:
            node.disk.unwritten_epoch = False
            self._obeyed[node.host] = max(self._obeyed[node.host], record.leader_epoch)
        elif not node.disk.unwritten_epoch and not record.quarantined:
            self._auditor.violation(
                f"{node.node_id} obeys leader {record.leader_epoch}, but would remember {node.disk.leader_epoch}"
            )

    def forgotten(self, node: SimNode, slice_id: str) -> None:
        """A reservation would not be there."""
        self._durable[node.host].discard(slice_id)

    def says(self, connection: Connection, data: bytes) -> None:
        """An agent sends a message."""
        host = connection.client
        durable, ever = self._durable.get(host), self._ever.get(host)
        message = agent_pb2.AgentMessage.FromString(data)
        kind = message.WhichOneof("message")
        if durable is None or ever is None or kind not in ("snapshot", "reports"):
            return
        reports = message.snapshot.slices if kind == "snapshot" else message.reports.reports
        for report in reports:
            if report.status in _OVER:
                if report.slice_id in durable:
                    self._auditor.violation(f"{host} says that {report.slice_id} is over, but would take it up again")
            elif report.slice_id not in ever:
                self._auditor.violation(f"{host} says that it holds {report.slice_id}, but would forget it")
        if kind == "snapshot":
            unnamed = self._at_start[host] & durable - {report.slice_id for report in reports}
            if unnamed:
                self._auditor.violation(f"{host} has {min(unnamed)} on its disk, but does not say so")

"""Books with nodes whose agents say what is wrong with their cards, and carry out what they are told."""

from __future__ import annotations

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import Incident, Sign, Standing
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import NodeSpec
from tests.core.harness import Books

ALL = ("reset", "reboot", "verify")
XID_79 = Sign("xid-79", Severity.FATAL, Scope.NODE, Remedy.REBOOT, "XID 79: fell off the bus")
XID_95 = Sign("xid-95", Severity.FATAL, Scope.CARD, Remedy.RESET, "XID 95: uncontained memory error")
HOT = Sign("hot", Severity.DEGRADED, Scope.CARD, Remedy.NONE, "too hot: its clocks are held down")
REMAP = Sign("remap-pending", Severity.DEGRADED, Scope.CARD, Remedy.RESET, "memory rows wait to be remapped")
WORN = Sign("remap-failed", Severity.FATAL, Scope.CARD, Remedy.SERVICE, "a memory row could not be remapped")


class Sick:
    """Lets the agents of some books speak."""

    def __init__(self, *specs: NodeSpec, config: CoreConfig | None = None) -> None:
        self.books = Books(config)
        for spec in specs:
            self.books.connect(spec)

    def node_of(self, uuid: str) -> str:
        return self.books.state.inventory.device_record(uuid).node_id

    def say(self, uuid: str, sign: Sign | None) -> None:
        """The agent's judgement; then everything that is due."""
        node_id = self.node_of(uuid)
        epoch = self.books.sessions[node_id]
        if sign is None:
            self.books.do(c.ReportDevice(node_id, epoch, uuid, 0, healthy=True))
        else:
            self.books.do(
                c.ReportDevice(
                    node_id, epoch, uuid, 0, healthy=False, reason=sign.reason, cause=sign.cause,
                    severity=sign.severity, scope=sign.scope, remedy=sign.remedy,
                )
            )  # fmt: skip
        self.books.settle()

    def obey(self, node_id: str, problem: str = "") -> Remedy:
        """The agent carries out its one order, after which its cards are well; what that was."""
        (order,) = self.books.state.nodes[node_id].care
        spec = self.books.state.nodes[node_id].spec
        for device in spec.devices if not problem else ():
            if device.uuid in order.units or device.parent_uuid in order.units:
                self.books.do(c.ReportDevice(node_id, self.books.sessions[node_id], device.uuid, 0, healthy=True))
        self.books.do(c.ReportCare(node_id, self.books.sessions[node_id], order.number, problem))
        self.books.settle()
        return order.action

    def standing(self, uuid: str) -> Standing:
        return self.books.state.devices[uuid].standing

    def usable(self, uuid: str) -> bool:
        return self.books.state.inventory.device(uuid).healthy

    @property
    def open(self) -> list[Incident]:
        return list(self.books.state.health.incidents.values())

    def incident(self, uuid: str) -> Incident:
        return self.books.state.health.incidents[self.books.state.devices[uuid].incident]

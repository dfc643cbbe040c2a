"""What an agent of the contract knows and says, with no GPU and no connection below it.

Suites and benchmarks that need many agents, or odd ones, speak to a real coordinator themselves; what a node is made
of, and how it answers what it is told to hold, is here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.common.limits import GIB
from aliquot.v1 import agent_pb2, types_pb2


class PretendedNode:
    """A node of A100s that sets up and ends whatever it is told to, at once."""

    __slots__ = ("boot_id", "clock_ms", "confirms", "name", "node_id", "reservations", "telemetry", "uuids")

    def __init__(self, node_id: str, uuids: Sequence[str], *, name: str = "") -> None:
        self.node_id = node_id
        self.name = name or node_id
        self.uuids = uuids
        self.boot_id = f"boot-of-{node_id}"
        """Of the machine that it pretends to run on."""
        self.reservations: dict[str, agent_pb2.SliceReport] = {}
        """By slice: the last that was said of it. They outlive connections, as an agent's checkpoint does."""
        self.telemetry: types_pb2.DeviceTelemetry | None = None
        """What is measured on every device; None: nothing is."""
        self.clock_ms = 0
        """What its machine's clock shows; 0: it does not tell."""
        self.confirms = True
        """Whether it sets up what it is told to run."""

    def hello(self, leader_epoch: int = 0) -> agent_pb2.AgentMessage:
        """The first message of a session, from an agent that has last obeyed the leader of that epoch."""
        hello = agent_pb2.Hello(
            protocol_min=1,
            protocol_max=1,
            node_id=self.node_id,
            boot_id=self.boot_id,
            agent_version="test",
            leader_epoch=leader_epoch,
            clock_ms=self.clock_ms,
        )
        return agent_pb2.AgentMessage(hello=hello)

    def snapshot(self, seq: int) -> agent_pb2.AgentMessage:
        """All there is to say."""
        devices = [
            types_pb2.Device(
                uuid=uuid,
                index=index,
                model="A100-80",
                product_name="NVIDIA A100-SXM4-80GB",
                memory_total_bytes=80 * GIB,
                memory_reserved_bytes=GIB,
                healthy=True,
                tiers=[types_pb2.TIER_NONE, types_pb2.TIER_WATCHDOG],
                telemetry=self.telemetry,
            )
            for index, uuid in enumerate(self.uuids)
        ]
        node = types_pb2.Node(node_id=self.node_id, name=self.name, devices=devices, driver_version="580.65")
        snapshot = agent_pb2.Snapshot(seq=seq, node=node, slices=self.reservations.values())
        return agent_pb2.AgentMessage(snapshot=snapshot)

    def obey(self, desired: agent_pb2.Desired) -> list[agent_pb2.SliceReport]:
        """Hold what is desired and nothing that is settled; returns what to confirm."""
        for slice_id in desired.settled:
            self.reservations.pop(slice_id, None)
        # Those to stop first: one message may give what another part of it takes.
        ordered = sorted(desired.slices, key=_runs)
        reports = [_confirmed(wanted) for wanted in ordered if self.confirms or not _runs(wanted)]
        self.reservations.update((report.slice_id, report) for report in reports)
        return reports


def reports_message(session_epoch: int, reports: Iterable[agent_pb2.SliceReport]) -> agent_pb2.AgentMessage:
    """Confirmations as they go out, in the session of that epoch."""
    return agent_pb2.AgentMessage(reports=agent_pb2.SliceReports(session_epoch=session_epoch, reports=reports))


def _runs(wanted: agent_pb2.DesiredSlice) -> bool:
    return wanted.state == agent_pb2.DESIRED_STATE_RUN


def _confirmed(wanted: agent_pb2.DesiredSlice) -> agent_pb2.SliceReport:
    return agent_pb2.SliceReport(
        slice_id=wanted.slice_id,
        lease_id=wanted.lease_id,
        lease_epoch=wanted.lease_epoch,
        status=agent_pb2.SLICE_STATUS_ACTIVE if _runs(wanted) else agent_pb2.SLICE_STATUS_GONE,
        tier=types_pb2.TIER_WATCHDOG,
        device_uuid=wanted.device_uuid,
        share_milli=wanted.share_milli,
        memory_bytes=wanted.memory_bytes,
    )

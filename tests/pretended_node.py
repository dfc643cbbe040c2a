"""What an agent of the contract knows and says, with no GPU and no connection of its own below it.

Suites and benchmarks that need many agents, or odd ones, speak to a real coordinator themselves; what a node is made
of, and how it answers what it is told to hold, is here, once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from aliquot.common.limits import GIB
from aliquot.common.proof import NONCE_BYTES
from aliquot.v1 import agent_pb2, types_pb2
from tests import joining


class PretendedNode:
    """A node of A100s that sets up and ends whatever it is told to, at once."""

    __slots__ = (
        "boot_id",
        "clock_ms",
        "confirms",
        "key_pem",
        "name",
        "node_id",
        "nonce",
        "reservations",
        "telemetry",
        "uuids",
    )

    def __init__(self, node_id: str, uuids: Sequence[str], *, name: str = "") -> None:
        self.node_id = node_id
        self.name = name or node_id
        self.uuids = uuids
        self.boot_id = f"boot-of-{node_id}"
        """Of the machine that it pretends to run on."""
        self.key_pem = joining.key_of(node_id)
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.reservations: dict[str, agent_pb2.SliceReport] = {}
        """By slice: the last that was said of it. They outlive connections, as an agent's checkpoint does."""
        self.telemetry: types_pb2.DeviceTelemetry | None = None
        """What is measured on every device; None: nothing is."""
        self.clock_ms = 0
        """What its machine's clock shows; 0: it does not tell."""
        self.confirms = True
        """Whether it sets up what it is told to run."""

    async def join(self, channel: Any) -> None:
        """Bring its key, with an invite that it makes itself: the channel sends an operator's token."""
        invite = await joining.invite(channel, self.node_id)
        await joining.join(channel, invite, self.node_id, self.key_pem, name=self.name)

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
            nonce=self.nonce,
        )
        return agent_pb2.AgentMessage(hello=hello)

    def proof(self, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
        """What it answers to a challenge."""
        return joining.prove(self.key_pem, hello, challenge)

    async def shake_hands(self, call: Any, leader_epoch: int = 0) -> Any:
        """Hello, and the proof where one is asked for. Returns Welcome as it came, or that the stream has ended."""
        hello = self.hello(leader_epoch)
        await call.write(hello)
        answer = await call.read()
        if isinstance(answer, agent_pb2.CoordinatorMessage) and answer.HasField("challenge"):
            await call.write(agent_pb2.AgentMessage(proof=self.proof(hello.hello, answer.challenge)))
            answer = await call.read()
        return answer

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

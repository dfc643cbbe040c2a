"""What happens on the machines: no device reserved beyond what it has, no stranger harmed, nothing left behind."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.disks import DisksAudit
from tests.simulation.auditor.overruns import OverrunsAudit
from tests.simulation.auditor.records import Piece

if TYPE_CHECKING:
    from tests.simulation.auditor.auditor import Auditor
    from tests.simulation.sim.machine import SimMachine, SimProc
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.world import World


UNWRITTEN_US = 1_000_000
"""From an order to stop to the signal, where the order could not be written down."""


class _Held:
    __slots__ = ("lease_id", "member", "memory", "share", "stopping", "uuid")

    def __init__(self, spec: Any) -> None:
        self.lease_id, self.member, self.uuid = spec.lease_id, spec.member, spec.device_uuid
        self.share = 0 if spec.lender else spec.share_milli
        self.memory = 0 if spec.lender_memory else spec.memory_bytes
        self.stopping = False
        """Its agent has been ordered to stop it, and not reprieved since."""


class NodesAudit:
    """See the module's docstring."""

    def __init__(self, world: World, auditor: Auditor) -> None:
        self._world = world
        self._auditor = auditor
        self._held: dict[str, dict[str, _Held]] = {}
        self._overruns = OverrunsAudit(
            self._limit, lambda: world.loop.now_us, lambda lease: self._tenants.get(lease, lease)
        )
        self._tenants: dict[str, str] = {}
        """By lease, also of those that are over."""
        self._share: Counter[str] = Counter()
        self._memory: Counter[str] = Counter()
        self._fence: dict[str, int] = {}
        self.signals = 0
        self.disks = DisksAudit(auditor)

    def attach(self, node: SimNode) -> None:
        """Listen to one node."""
        self._held[node.host] = {}
        self._fence[node.host] = 0
        self.disks.attach(node)
        node.disk.on_saved = lambda record: self._saved(node, record)
        node.disk.on_forgotten = lambda slice_id: self._forgotten(node, slice_id)
        node.on_signal = self._signalled
        node.on_memory = self._memory_changed
        node.on_agent_error = lambda node, error: self._auditor.violation(
            f"the agent of {node.node_id} ended: {error!r}"
        )
        node.on_agent_start = self._agent_started
        node.before_agent_start = self.disks.starts
        node.disk.on_emptied = lambda: self.disks.emptied(node)
        for card in node.cards.values():
            card.on_destroyed = lambda uuid: self._destroyed(node, uuid)

    def _destroyed(self, node: SimNode, uuid: str) -> None:
        if any(held.uuid == uuid for held in self._held[node.host].values()):
            self._auditor.violation(f"{node.node_id} destroys {uuid}, on which it has reserved something")

    def leave(self, node: SimNode) -> None:
        """A machine is taken away, with all that it has written down."""
        for slice_id in list(self._held[node.host]):
            self._forgotten(node, slice_id)
        del self._held[node.host]

    # -- what agents write down

    def _agent_started(self, node: SimNode) -> None:
        self._auditor.tell(f"the agent of {node.node_id} has started")
        self._fence[node.host] = node.disk.leader_epoch

    def _saved(self, node: SimNode, record: Any) -> None:
        auditor = self._auditor
        spec = record.spec
        auditor.tell(f"{node.node_id} writes {spec.slice_id} {record.intent} quarantined {record.quarantined}")
        self.disks.saved(node, record)
        held = self._held[node.host]
        known = held.get(spec.slice_id)
        if not record.quarantined:
            if record.leader_epoch < self._fence[node.host]:
                fence = self._fence[node.host]
                auditor.violation(f"{node.node_id} obeys leader {record.leader_epoch} after {fence}: {spec.slice_id}")
            self._fence[node.host] = max(self._fence[node.host], record.leader_epoch)
        if known is not None:
            known.stopping = record.intent == "stop"
            return
        granted = auditor.books.granted_ever.get(spec.slice_id)
        if granted != (node.node_id, spec.device_uuid, spec.share_milli, spec.memory_bytes):
            auditor.violation(f"{node.node_id} reserves {spec.slice_id}, which was not granted so")
        held[spec.slice_id] = _Held(spec)
        self._tenants[spec.lease_id] = spec.tenant or spec.lease_id
        uuid = spec.device_uuid
        self._share[uuid] += held[spec.slice_id].share
        self._memory[uuid] += held[spec.slice_id].memory
        device = node.devices[uuid].info
        if (
            self._share[uuid] > device.compute_milli
            or self._memory[uuid] > device.memory_total_bytes - device.memory_reserved_bytes
        ):
            auditor.violation(
                f"{node.node_id} reserves {self._share[uuid]} milli and {self._memory[uuid]} bytes of {uuid}"
            )

    def _forgotten(self, node: SimNode, slice_id: str) -> None:
        self._auditor.tell(f"{node.node_id} removes {slice_id}")
        self.disks.forgotten(node, slice_id)
        held = self._held[node.host].pop(slice_id, None)
        if held is not None:
            self._share[held.uuid] -= held.share
            self._memory[held.uuid] -= held.memory
            self._overruns.look(node, held.lease_id)

    def freed(self, piece: Piece) -> str:
        """A slice's capacity is free, says the coordinator: is it, on the machine?"""
        node = self._world.node(piece.node_id)
        if node is None:
            return ""
        if piece.slice_id in self._held[piece.node_id]:
            return f"{piece.slice_id} is over, but {piece.node_id} still reserves it"
        if piece.slice_id in node.disk.damaged:
            return ""  # with its record gone, what is left of it counts as foreign: stated in checkpoint.py
        for proc in node.procs.values():
            if _may_escape(proc):
                continue
            if proc.lease_id == piece.lease_id and proc.member == piece.member and piece.uuid in proc.memory:
                others = self._auditor.books.stories[piece.lease_id].pieces.values()
                if not any(p.node_id == piece.node_id and p.member == piece.member for p in others):
                    return f"{piece.slice_id} is over, but process {proc.pid} still uses {piece.uuid}"
        return ""

    # -- programs

    def _limit(self, machine: SimMachine, lease_id: str, member: int, uuid: str) -> int:
        return sum(
            held.memory
            for held in self._held[machine.host].values()
            if held.lease_id == lease_id and held.member == member and held.uuid == uuid
        )

    def _memory_changed(self, proc: SimProc, uuid: str) -> None:
        if proc.lease_id:
            self._overruns.look(proc.machine, proc.lease_id)

    def _signalled(self, proc: SimProc, what: int) -> None:
        self.signals += 1
        self._auditor.tell(
            f"{proc.machine.node_id} sends signal {what} to {proc.pid} of {proc.lease_id}: {proc.machine.why}"
        )
        auditor = self._auditor
        name = signal.Signals(what).name
        node = proc.machine
        if proc.key != node.meant:
            auditor.violation(f"{node.node_id} sends {name} to {proc.key}, which is not {node.meant} ({node.why})")
            return
        if not proc.lease_id:
            auditor.violation(f"{node.node_id} sends {name} to {proc.pid}, which belongs to no lease")
            return
        story = auditor.books.stories.get(proc.lease_id)
        if story is None or story.ended or story.ending:
            return
        pieces = [p for p in story.pieces.values() if p.node_id == node.node_id and p.member == proc.member]
        if not pieces or any(piece.ending for piece in pieces):
            return
        held = self._held[node.host].items()
        of_member = {key: h for key, h in held if h.lease_id == proc.lease_id and h.member == proc.member}
        if any(h.stopping or self._stops_unwritten(node.node_id, slice_id) for slice_id, h in of_member.items()):
            return
        wrong = self._overruns.wrong(proc, what)
        if wrong:
            auditor.violation(
                f"{node.node_id} sends {name} to {proc.pid} of {proc.lease_id}, which {wrong} ({node.why})"
            )

    def _stops_unwritten(self, node_id: str, slice_id: str) -> bool:
        """Whether its agent has just been told to stop a slice, and can't write down that it was: the disk is full."""
        node = self._world.node(node_id)
        told_us = self._auditor.wire.stopped_us.get((node_id, slice_id), -UNWRITTEN_US)
        return node is not None and node.disk.full and self._world.loop.now_us - told_us < UNWRITTEN_US

    # -- the end

    def unsettled(self) -> str | None:
        """What is left on the machines."""
        stories = self._auditor.books.stories
        for node_id, held in self._held.items():
            # What a node that was written off brings back after its lease was forgotten stays there for people to end,
            # where another coordinator leads by then.
            known = [slice_id for slice_id, each in held.items() if each.lease_id in stories]
            if known:
                return f"{node_id} still reserves {known[0]}"
        for node in self._world.nodes:
            for card in node.cards.values():
                wanted = self._auditor.books.cuts.parts.get(card.uuid)
                if wanted is not None and not card.failed and card.parts() != wanted:
                    return f"{card.uuid} is cut as {card.parts()}, not as {wanted}"
            damaged = {slice_id.partition(".")[0] for slice_id in node.disk.damaged}
            for proc in node.procs.values():
                if proc.lease_id in stories and proc.memory and proc.lease_id not in damaged and not _may_escape(proc):
                    return f"process {proc.pid} of {proc.lease_id} still runs on {node.node_id}"
        return None


def _may_escape(proc: SimProc) -> bool:
    """Without cgroups, what a job's process starts can get out of sight: that is stated, and counts as foreign."""
    return proc.child and not proc.machine.has_cgroups

"""Nodes: declared, registered, silent, heard again, cordoned, drained, removed; and what their devices can give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.enrolment import NodeDisenrolled
from aliquot.coordinator.core.books.health.records import Sign
from aliquot.coordinator.core.books.leases.facts import LeaseEnded, LeaseReleasing, SliceGone
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.books.nodes import (
    DeviceChanged,
    Node,
    NodeCordoned,
    NodePut,
    NodeRemoved,
    NodeStateChanged,
    SlicesWrittenOff,
)
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding.node_orders import closes
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.health import judge, vanished
from aliquot.coordinator.core.values.errors import (
    DeviceClaimed,
    InvalidField,
    NodeInUse,
    NodeNameTaken,
    SessionReplaced,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.types import EndReason, NodeSpec, NodeState


def declare(known: Known, command: c.DeclareNode, now_ms: int) -> Decision[None]:
    """Make nodes known without their agents. What an agent has registered is kept but for pool and labels."""
    specs = (command.spec, *command.others)
    _check_apart(specs)
    changed: list[tuple[Node | None, NodeSpec]] = []
    for spec in specs:
        _check_claims(known, spec)
        old = known.nodes.get(spec.node_id)
        wanted = spec
        if old is not None and old.registered:
            wanted = replace(old.spec, pool=spec.pool, labels=spec.labels, failure_domain=spec.failure_domain)
        if old is None or old.spec != wanted:
            changed.append((old, wanted))
    facts = _fail_vanished(known, changed, now_ms)
    for _, spec in changed:
        facts += [NodePut(at_ms=now_ms, spec=spec, registered=False), *closes(known, spec, now_ms)]
    return Decision(tuple(facts))


def register(known: Known, command: c.RegisterNode, now_ms: int) -> Decision[None]:
    """An agent has connected: its word on the hardware replaces any declaration, and it must reconcile first."""
    spec = command.spec
    facts: list[Fact] = []
    placeholder = _placeholder(known, spec)
    if placeholder is not None:
        spec = _inherit(spec, placeholder.spec)
        facts.append(NodeRemoved(at_ms=now_ms, node_id=placeholder.spec.node_id))
    _check_claims(known, spec, ignoring=placeholder)
    old = known.nodes.get(spec.node_id)
    if old is not None:
        if command.session_epoch <= old.session_epoch:
            raise SessionReplaced(
                f"session {command.session_epoch} of node {spec.name} is not above {old.session_epoch}",
                hint="another agent with this node id has connected since; two agents must not share a state folder",
            )
        _check_same_machine(known, old, spec)
        spec = _as_held(known, _inherit(spec, old.spec))
    facts += vanished(known, old, spec, now_ms)
    facts += _fail_vanished(known, [(old, spec)], now_ms)
    if old is None or old.spec != spec or not old.registered:
        facts.append(NodePut(at_ms=now_ms, spec=spec, registered=True))
    facts += closes(known, spec, now_ms)
    facts.append(
        NodeStateChanged(
            at_ms=now_ms,
            node_id=spec.node_id,
            state=NodeState.RECONCILING,
            session_epoch=command.session_epoch,
        )
    )
    return Decision(tuple(facts))


def _check_same_machine(known: Known, old: Node, spec: NodeSpec) -> None:
    """A machine made from the image of a node has its id but other cards: believing it would end every lease there.
    One that has lost all its cards, or has partitioned them anew, is the same still.
    """
    if not old.registered or not spec.devices or not known.slice_ids_by_node[spec.node_id]:
        return
    if _hardware(old.spec).isdisjoint(_hardware(spec)):
        raise NodeInUse(
            f"node {old.spec.name} holds slices, and this machine has none of its devices",
            hint="if it was made from the image of that node, remove node.record from its agent's state directory, or "
            "start that agent with a --node-id of its own; if all cards of the node were replaced, stop its agent and, "
            "once the node is LOST, forget it with force",
        )


def _hardware(spec: NodeSpec) -> set[str]:
    """What tells one machine from another: UUIDs of devices, and of the cards that they are parts of."""
    devices = {uuid for device in spec.devices for uuid in (device.uuid, device.parent_uuid) if uuid}
    return devices | {card.uuid for card in spec.cards}


def _as_held(known: Known, spec: NodeSpec) -> NodeSpec:
    """The node with no device smaller than what leases hold of it: a newer agent may report a MIG instance as a smaller
    part of its card than it was granted as.
    """
    if not any(device.mig_profile for device in spec.devices):
        return spec
    devices = []
    for device in spec.devices:
        held = known.inventory.device_record(device.uuid).share_used_milli if device.uuid in known.devices else 0
        devices.append(replace(device, compute_milli=held) if held > device.compute_milli else device)
    return replace(spec, devices=tuple(devices))


def silent(known: Known, command: c.NodeSilent, now_ms: int) -> Decision[None]:
    """A node has not been heard. SUSPECT stops new grants; LOST makes its slices UNREACHABLE."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    target = NodeState.LOST if command.lost else NodeState.SUSPECT
    if node.state in (target, NodeState.LOST, NodeState.DECLARED):
        return NOTHING
    return _changed(command.node_id, target, command.session_epoch, command.reason, now_ms)


def heard(known: Known, command: c.NodeHeard, now_ms: int) -> Decision[None]:
    """A SUSPECT node spoke on the session it had: nothing was missed, it goes on. A LOST one must register again."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch or node.state is not NodeState.SUSPECT:
        return NOTHING
    return _changed(command.node_id, NodeState.READY, command.session_epoch, "", now_ms)


def _changed(node_id: str, target: NodeState, session_epoch: int, reason: str, now_ms: int) -> Decision[None]:
    fact = NodeStateChanged(at_ms=now_ms, node_id=node_id, state=target, session_epoch=session_epoch, reason=reason)
    return Decision((fact,))


def cordon(known: Known, command: c.Cordon, now_ms: int) -> Decision[None]:
    """Open or close a node. Draining also ends its leases: preemptible ones go back to their queue."""
    node = known.node(command.node_id)
    node_id = node.spec.node_id
    facts: list[Fact] = []
    wanted = (command.cordoned, command.drain, command.reason)
    if (node.cordoned, node.draining, node.reason) != wanted:
        facts.append(
            NodeCordoned(
                at_ms=now_ms,
                node_id=node_id,
                cordoned=command.cordoned,
                draining=command.drain,
                reason=command.reason,
            )
        )
    if command.drain:
        detail = f"node {node.spec.name} is drained" + (f": {command.reason}" if command.reason else "")
        for lease_id in dict.fromkeys(lease_id_of(slice_id) for slice_id in known.slice_ids_by_node[node_id]):
            facts += drain_lease(known, known.leases[lease_id], node_id, detail, command.grace_ms, now_ms)
    return Decision(tuple(facts))


def write_off(known: Known, command: c.WriteOff, now_ms: int) -> Decision[None]:
    """Have slices ended that nobody knows. One that a lease holds ends with its lease, and in no other way.

    Raises InvalidField for one that is known.
    """
    node = known.node(command.node_id)
    for slice_id in command.slice_ids:
        if lease_id_of(slice_id) in known.leases:
            raise InvalidField("slice_ids", f"{slice_id[:64]!r} is known", hint="release its lease")
    fresh = tuple(slice_id for slice_id in command.slice_ids if slice_id not in node.written_off)
    return Decision((SlicesWrittenOff(now_ms, node.spec.node_id, fresh),)) if fresh else NOTHING


def drain_lease(known: Known, lease: Lease, node_id: str, detail: str, grace_ms: int, now_ms: int) -> list[Fact]:
    """Facts that end what a lease holds on a node, with its own grace where `grace_ms` is 0.

    An elastic lease goes on without it where it can; a preemptible or movable one goes back to its queue.
    """
    there = [piece for piece in lease.current if piece.plan.node_id == node_id]
    return lifecycle.leave(known, lease, there, detail, grace_ms, now_ms)


def remove(known: Known, command: c.RemoveNode, now_ms: int) -> Decision[None]:
    """Forget a node. With `force`, one that is lost for good takes what it held with it."""
    node = known.node(command.node_id)
    node_id = node.spec.node_id
    held = known.slice_ids_by_node[node_id]
    if held and not (command.force and node.state is NodeState.LOST):
        raise NodeInUse(
            f"node {node.spec.name} still holds {len(held)} slices",
            hint="drain it and wait for its leases to end; if it is LOST and will not return, remove it with force",
        )
    if node.state in (NodeState.READY, NodeState.SUSPECT, NodeState.RECONCILING):
        raise NodeInUse(
            f"the agent of node {node.spec.name} is connected",
            hint="stop the agent first, then remove the node",
        )
    facts: list[Fact] = []
    for lease_id in dict.fromkeys(lease_id_of(slice_id) for slice_id in held):
        facts += _write_off(known, lease_id, node_id, now_ms)
    facts.append(NodeRemoved(at_ms=now_ms, node_id=node_id))
    if node_id in known.enrolment.enrolled:
        facts.append(NodeDisenrolled(now_ms, node_id))
    return Decision(tuple(facts))


def report_device(known: Known, command: c.ReportDevice, now_ms: int) -> Decision[None]:
    """A device's health or foreign memory changed; the session layer has applied its deadband."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    old = known.devices.get(command.uuid)
    if old is None or all(device.uuid != command.uuid for device in node.spec.devices):
        return NOTHING
    said = (command.healthy, command.reason, command.cause, command.severity, command.scope, command.remedy)
    same = said == (old.healthy, old.reason, old.cause, old.severity, old.scope, old.remedy)
    if same and old.foreign_bytes == command.foreign_bytes:
        return NOTHING
    fact = DeviceChanged(
        at_ms=now_ms,
        uuid=command.uuid,
        foreign_bytes=command.foreign_bytes,
        healthy=command.healthy,
        reason=command.reason,
        cause=command.cause,
        severity=command.severity,
        scope=command.scope,
        remedy=command.remedy,
    )
    if same or (command.healthy and not old.incident):
        return Decision((fact,))
    spec = known.inventory.device_record(command.uuid).spec
    sign = None
    if not command.healthy and command.cause:
        sign = Sign(command.cause, command.severity, command.scope, command.remedy, command.reason)
    return Decision((fact, *judge(known, node, spec, sign, now_ms)))


def _check_apart(specs: Sequence[NodeSpec]) -> None:
    """What is declared together claims nothing twice."""
    if len(specs) == 1:
        return
    seen: set[tuple[str, str]] = set()
    for number, spec in enumerate(specs):
        claims = {("id", spec.node_id), ("name", spec.name), *(("device", device.uuid) for device in spec.devices)}
        for kind, claimed in claims & seen:
            raise InvalidField(f"nodes[{number}]", f"{kind} {claimed} is another one's in the same list")
        seen |= claims


def _check_claims(known: Known, spec: NodeSpec, ignoring: Node | None = None) -> None:
    """Names and device UUIDs belong to one node each."""
    owner = known.node_ids_by_name.get(spec.name)
    ignored = ignoring.spec.node_id if ignoring is not None else None
    if owner is not None and owner not in (spec.node_id, ignored):
        raise NodeNameTaken(
            f"the name {spec.name!r} belongs to node {owner}",
            hint="give this node another name (--node-name)",
        )
    seen: set[str] = set()
    for number, device in enumerate(spec.devices):
        if device.uuid in seen:
            raise InvalidField(f"devices[{number}].uuid", f"device {device.uuid} is listed twice")
        if device.memory_total_bytes <= 0 or device.leasable_bytes < 0:
            raise InvalidField(f"devices[{number}].memory_total_bytes", f"device {device.uuid} has no memory to lease")
        seen.add(device.uuid)
        if known.inventory.has_device(device.uuid):
            other = known.inventory.device(device.uuid).node_id
            if other not in (spec.node_id, ignored):
                raise DeviceClaimed(
                    f"device {device.uuid} belongs to node {other}",
                    hint="if the card was moved, remove the old node first; UUIDs are never shared",
                )


def _placeholder(known: Known, spec: NodeSpec) -> Node | None:
    """A mere declaration under the same name, which the registering agent stands in for."""
    owner = known.node_ids_by_name.get(spec.name)
    if owner is None or owner == spec.node_id:
        return None
    node = known.nodes[owner]
    if node.registered or known.slice_ids_by_node[owner]:
        return None
    return node


def _inherit(spec: NodeSpec, old: NodeSpec) -> NodeSpec:
    """What an administrator declared outlives a registration that says nothing about it."""
    return replace(
        spec,
        pool=old.pool if spec.pool == "default" else spec.pool,
        labels=tuple(sorted({**dict(old.labels), **dict(spec.labels)}.items())),
        failure_domain=spec.failure_domain or old.failure_domain,
    )


def _fail_vanished(known: Known, changed: Iterable[tuple[Node | None, NodeSpec]], now_ms: int) -> list[Fact]:
    """Slices on devices that nodes no longer have are lost with them."""
    failed: dict[str, dict[str, tuple[str, str]]] = {}
    for old, spec in changed:
        if old is None:
            continue
        vanished = {device.uuid for device in old.spec.devices} - {device.uuid for device in spec.devices}
        for slice_id in known.slice_ids_by_node[spec.node_id] if vanished else ():
            lease_id = lease_id_of(slice_id)
            piece = known.leases[lease_id].find(slice_id)
            if piece is not None and piece.plan.device_uuid in vanished:
                failed.setdefault(lease_id, {})[slice_id] = ("DEVICE_VANISHED", f"{spec.name} no longer has it")
    facts: list[Fact] = []
    for lease_id, of_lease in failed.items():
        facts += lifecycle.conclude(known, known.leases[lease_id], (), of_lease, now_ms)
    return facts


def _write_off(known: Known, lease_id: str, node_id: str, now_ms: int) -> list[Fact]:
    """End a lease that has slices on a node that is gone for good; those on other nodes end in their own time."""
    lease = known.leases[lease_id]
    detail = f"node {node_id} was removed"
    facts: list[Fact] = []
    there = [piece for piece in lease.holding if piece.plan.node_id == node_id]
    lost = [piece for piece in there if piece in lease.current]
    fewer = resizing.go_on_without(known, lease, lost, detail, now_ms) if lost else []
    goes_on = fewer is not None and not lease.ending
    if goes_on:
        facts += fewer or ()
    elif not lease.ending and not lease.waiting:
        facts.append(
            LeaseReleasing(
                at_ms=now_ms,
                lease_id=lease_id,
                reason=EndReason.FAILED,
                detail=detail,
                deadline_ms=now_ms + lease.request.grace_ms,
            )
        )
    facts += [SliceGone(at_ms=now_ms, lease_id=lease_id, slice_id=piece.slice_id) for piece in there]
    if len(there) == len(lease.holding) and not lease.waiting and not goes_on:
        reason = EndReason(lease.end_reason) if lease.end_reason else EndReason.FAILED
        facts.append(LeaseEnded(at_ms=now_ms, lease_id=lease_id, reason=reason, detail=detail))
    return facts


DECIDES = Decides(commands=by_kind(declare, remove, cordon, write_off, register, silent, heard, report_device))

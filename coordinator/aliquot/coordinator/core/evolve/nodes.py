"""How nodes and devices change the State: what accepts grants, and which holds break."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.leases.records import SliceEvent
from aliquot.coordinator.core.books.maintenance import Phase, closure_of
from aliquot.coordinator.core.books.nodes import (
    WRITTEN_OFF_KEPT,
    Device,
    DeviceChanged,
    Node,
    NodeCordoned,
    NodePut,
    NodeRemoved,
    NodeStateChanged,
    SlicesWrittenOff,
)
from aliquot.coordinator.core.evolve import health, holds, saving
from aliquot.coordinator.core.evolve.leases import move_slice
from aliquot.coordinator.core.evolve.mig import keep as keep_cuts
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import BrokenInvariant
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import NodeState


def _node_put(state: State, fact: NodePut) -> None:
    spec = fact.spec
    old = state.nodes.get(spec.node_id)
    if old is not None:
        state.node_ids_by_name.pop(old.spec.name, None)
        kept = {device.uuid for device in spec.devices}
        for device in old.spec.devices:
            if device.uuid not in kept:
                state.devices.pop(device.uuid, None)
    state.node_ids_by_name[spec.name] = spec.node_id
    for device in spec.devices:
        state.devices.setdefault(device.uuid, Device())
        state.touched.devices[device.uuid] = None
    state.inventory.put_node(spec)
    health.describe(state, old.spec if old is not None else None, spec)
    for device in spec.devices:
        health.stand(state, device.uuid)  # it may have come back while an incident covers it
    health.restrict(state, spec)
    for device in spec.devices:
        if device.uuid in state.hold_of_device:  # it vanished and came back before its hold was broken
            state.inventory.withhold(device.uuid, state.hold_of_device[device.uuid])
    state.capacity_version += 1
    state.slice_ids_by_node.setdefault(spec.node_id, {})
    registered = fact.registered or (old is not None and old.registered)
    node = (
        replace(old, spec=spec, registered=registered)
        if old is not None
        else Node(spec=spec, state=NodeState.DECLARED, registered=registered)
    )
    set_node(state, node)
    keep_cuts(state, node)
    before = old.spec.devices if old is not None else ()
    holds.look_at_kept(state, [device.uuid for device in (*before, *spec.devices)])


def _node_state_changed(state: State, fact: NodeStateChanged) -> None:
    node = state.nodes[fact.node_id]
    set_node(
        state,
        replace(
            node,
            state=fact.state,
            session_epoch=max(node.session_epoch, fact.session_epoch),
            reason=fact.reason,
        ),
    )
    if fact.state is NodeState.LOST:
        # Sorted, because entries are numbered and a snapshot does not keep the index's order.
        for slice_id in sorted(state.slice_ids_by_node[fact.node_id]):
            move_slice(state, slice_id, SliceEvent.LOSE, fact.at_ms)


def _node_cordoned(state: State, fact: NodeCordoned) -> None:
    node = state.nodes[fact.node_id]
    set_node(state, replace(node, cordoned=fact.cordoned, draining=fact.draining, reason=fact.reason))


def _slices_written_off(state: State, fact: SlicesWrittenOff) -> None:
    node = state.nodes[fact.node_id]
    set_node(state, replace(node, written_off=(*node.written_off, *fact.slice_ids)[-WRITTEN_OFF_KEPT:]))


def _node_removed(state: State, fact: NodeRemoved) -> None:
    if state.slice_ids_by_node[fact.node_id]:
        raise BrokenInvariant(f"node {fact.node_id} is removed while it holds slices")
    node = state.nodes.pop(fact.node_id)
    state.inventory.remove_node(fact.node_id)
    state.node_ids_by_name.pop(node.spec.name, None)
    state.closed.pop(fact.node_id, None)
    state.emptying.pop(fact.node_id, None)
    state.cutting.pop(fact.node_id, None)
    del state.slice_ids_by_node[fact.node_id]
    for device in node.spec.devices:
        state.devices.pop(device.uuid, None)
        state.touched.devices[device.uuid] = None
    holds.look_at_kept(state, [device.uuid for device in node.spec.devices])
    state.capacity_version += 1
    state.node_versions.pop(fact.node_id, None)
    health.describe(state, node.spec, None)
    health.forget_node(state, fact.node_id, fact.at_ms)
    state.touched.nodes[fact.node_id] = None


def _device_changed(state: State, fact: DeviceChanged) -> None:
    old = state.devices[fact.uuid]
    device = replace(
        old,
        foreign_bytes=fact.foreign_bytes,
        healthy=fact.healthy,
        reason=fact.reason,
        cause=fact.cause,
        severity=fact.severity,
        scope=fact.scope,
        remedy=fact.remedy,
        overruled=old.overruled if not fact.healthy and fact.cause == old.overruled else "",
    )
    health.put_device(state, fact.uuid, device)
    health.watch_signs(state, fact.uuid, device)


def set_node(state: State, node: Node) -> None:
    """Put a record into the books, closed as the windows that are over it have it."""
    node_id = node.spec.node_id
    closure = closure_of(state.windows, node.spec) if state.windows else None
    old = state.nodes.get(node_id)
    counted_on = old is not None and old.counted_on
    node = state.nodes[node_id] = replace(node, seq=state.seq, closure=closure)
    note_closure(state, node)
    grantable = state.inventory.node(node_id).grantable
    state.inventory.set_grantable(node_id, node.grantable)
    state.touched.nodes[node_id] = None
    state.node_touched(node_id)
    if (node.counted_on, node.grantable) != (counted_on, grantable):
        state.capacity_version += 1
        state.tenancy.guaranteed_version += 1
    if state.hold_of_device:
        for owner in dict.fromkeys(state.hold_of_device.get(device.uuid, "") for device in node.spec.devices):
            if owner:
                state.offer_again()  # perhaps it is broken, and its owner must be decided on anew
                holds.look_at_hold(state, owner)
    if node.grantable:
        state.free_capacity()


def note_closure(state: State, node: Node) -> None:
    """Keep up the index of closed nodes; have what runs on one that is under maintenance looked at."""
    node_id, closure = node.spec.node_id, node.closure
    if closure is not None and node.open:
        state.closed[node_id] = closure
        state.closed_version += 1
    else:
        state.closed.pop(node_id, None)
    if closure is not None and closure.phase is Phase.OPEN:
        if state.slice_ids_by_node.get(node_id):
            state.emptying[node_id] = None
        state.timers.add(state.now_ms, Due.MAINTENANCE, closure.window)
    else:
        state.emptying.pop(node_id, None)


def _index(state: State) -> None:
    """What there is, as arrays."""
    for node_id, node in state.nodes.items():
        state.node_ids_by_name[node.spec.name] = node_id
        state.slice_ids_by_node[node_id] = {}
        state.inventory.put_node(node.spec)
        state.inventory.set_grantable(node_id, node.grantable)


SUBJECT = Subject(
    name="nodes",
    apply=by_kind(_node_put, _node_state_changed, _node_cordoned, _slices_written_off, _node_removed, _device_changed),
    saves=(
        saving.records("nodes", Node, "nodes", key="spec.node_id", order=""),  # the rank that breaks placement's ties
        saving.pairs("devices", Device, "devices"),
    ),
    index=_index,
)

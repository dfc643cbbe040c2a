"""How a node's record is replaced, and what follows from it: whether it may be granted on, and which holds break."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.evolving import holds
from aliquot.coordinator.core.maintenance.windows import Phase, closure_of
from aliquot.coordinator.core.state import Node, State
from aliquot.coordinator.core.timers import Due


def set_node(state: State, node: Node) -> None:
    """Put a record into the books, closed as the windows that are over it have it."""
    node_id = node.spec.node_id
    closure = closure_of(state.windows, node.spec) if state.windows else None
    node = state.nodes[node_id] = replace(node, seq=state.seq, closure=closure)
    note_closure(state, node)
    old = state.inventory.node(node_id).grantable
    state.inventory.set_grantable(node_id, node.grantable)
    state.touch_node(node_id)
    state.node_touched(node_id)
    if node.grantable != old:
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

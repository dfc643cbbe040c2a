"""How holds and preemptions change the State."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from aliquot.coordinator.core import facts as f
from aliquot.coordinator.core.evolving.counting import expect, put_lease
from aliquot.coordinator.core.evolving.resizing import enlist
from aliquot.coordinator.core.holds import Hold, HoldKind
from aliquot.coordinator.core.leases import SliceEvent, SliceState, advance, lease_id_of
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.timers import Due
from aliquot.coordinator.core.types import Demand
from aliquot.coordinator.core.view import StateView


def _preemption_started(state: State, fact: f.PreemptionStarted) -> None:
    for lease_id in fact.victims:
        lease = state.leases[lease_id]
        times = (*lease.preempted_at_ms, fact.at_ms)[-max(fact.kept, 1) :]
        put_lease(state, replace(lease, preemptions=lease.preemptions + 1, preempted_at_ms=times, seq=state.seq))
        if not fact.reclaim:
            state.disrupted(lease.request.tenant, fact.at_ms)


def _hold_created(state: State, fact: f.HoldCreated) -> None:
    hold = Hold(
        owner=fact.owner,
        kind=fact.kind,
        placement=fact.placement,
        created_ms=fact.at_ms,
        expires_ms=fact.expires_ms,
        victims=fact.victims,
        start_ms=fact.start_ms,
        shed=fact.shed,
    )
    state.holds[fact.owner] = hold
    keep(state, hold)


def _lease_reprieved(state: State, fact: f.LeaseReprieved) -> None:
    lease = state.leases[fact.lease_id]
    slices = tuple(
        advance(piece, SliceEvent.REPRIEVE, fact.at_ms) if piece.state is SliceState.PREEMPTING else piece
        for piece in lease.slices
    )
    for piece in slices:
        state.node_touched(piece.plan.node_id)
    lease = replace(
        lease,
        slices=tuple(replace(piece, deadline_ms=0, reason="") for piece in slices),
        end_reason="",
        end_detail="",
        requeue=False,
        preemptions=lease.preemptions - 1,
        preempted_at_ms=lease.preempted_at_ms[:-1],  # it did not happen, so it doesn't count towards the bound
        seq=state.seq,
    )
    if not lease.gives_back:
        state.ending.pop(fact.lease_id, None)
    enlist(state, lease)
    put_lease(state, lease)


def keep(state: State, hold: Hold) -> None:
    """Let nobody else have its devices, and look at it when its time is up."""
    for uuid in hold.device_uuids:
        state.hold_of_device[uuid] = hold.owner
        if not state.inventory.has_device(uuid):
            continue  # it vanished with its node's last registration: the hold is about to be broken
        state.inventory.withhold(uuid, hold.owner)
        state.node_touched(state.inventory.device_record(uuid).node_id)
    state.timers.add(hold.expires_ms, Due.HOLD, hold.owner)
    if hold.kind is HoldKind.PREEMPTION:
        state.lines.serve(hold.owner, served=True)
    look_at_hold(state, hold.owner)


def _hold_released(state: State, fact: f.HoldReleased) -> None:
    drop_hold(state, fact.owner)


def _hold_broken(state: State, fact: f.HoldBroken) -> None:
    drop_hold(state, fact.owner)


def drop_hold(state: State, owner: str) -> None:
    """Its devices are for everybody again."""
    hold = state.holds.pop(owner)
    expect(state, owner, None)
    state.timers.drop(hold.expires_ms, Due.HOLD, owner)
    state.ready_holds.pop(owner, None)
    state.lines.serve(owner, served=False)
    for uuid in hold.device_uuids:
        del state.hold_of_device[uuid]
        if state.inventory.has_device(uuid):
            state.inventory.withhold(uuid, "")
            state.node_touched(state.inventory.device_record(uuid).node_id)
    state.free_capacity()


def look_at_device(state: State, uuid: str) -> None:
    """What is held of a device, or its health, has changed: perhaps a hold is complete, or no longer is."""
    owner = state.hold_of_device.get(uuid)
    if owner is not None:
        look_at_hold(state, owner)


def look_at_host(state: State, node_id: str, demand: Demand) -> None:
    """A member of `demand` has come to a node, or left it: perhaps a hold there is complete, or no longer is."""
    if state.hold_of_device and (demand.cpu_milli or demand.host_memory_bytes or demand.affinity_group):
        for device in state.inventory.node(node_id).devices:
            look_at_device(state, device.spec.uuid)


def look_at_hold(state: State, owner: str) -> None:
    """Note whether a hold is complete, and what its owner will be granted."""
    expect(state, owner, state.holds[owner])
    if is_complete(state, state.holds[owner]):
        state.ready_holds[owner] = None
    else:
        state.ready_holds.pop(owner, None)


def is_complete(state: StateView, hold: Hold) -> bool:
    """Whether everything the hold is for could be granted this moment."""
    inventory = state.inventory
    wanted: dict[str, list[int]] = {}
    members: dict[str, int] = {}
    for node_id, member in zip(hold.placement.node_ids, hold.placement.members, strict=True):
        members[node_id] = members.get(node_id, 0) + 1
        for plan in member:
            sums = wanted.setdefault(plan.device_uuid, [0, 0])
            sums[0] += plan.share_milli
            sums[1] += plan.memory_bytes
    for uuid, (share_milli, memory_bytes) in wanted.items():
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not device.has_room(share_milli, memory_bytes):
            return False
    lease = state.leases.get(hold.owner)
    demand = lease.request.demand if lease is not None else Demand()
    return all(
        inventory.has_node(node_id)
        and inventory.node(node_id).grantable
        and inventory.node(node_id).may_take(demand, count)
        for node_id, count in members.items()
    )


def can_complete(state: StateView, hold: Hold) -> bool:
    """Whether it may still become complete: its devices and nodes are there, well, and open."""
    inventory = state.inventory
    for uuid in hold.device_uuids:
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not inventory.node(device.node_id).grantable:
            return False
    if hold.kind is HoldKind.RESERVATION:
        return True
    return all(
        lease_id not in state.leases or state.leases[lease_id].ending or state.leases[lease_id].waiting
        for lease_id in hold.victims
    ) and all(_gives_way(state, slice_id) for slice_id in hold.shed)


def _gives_way(state: StateView, slice_id: str) -> bool:
    """Whether a slice of an elastic lease is gone, or on its way out."""
    lease = state.leases.get(lease_id_of(slice_id))
    piece = lease.find(slice_id) if lease is not None else None
    return piece is None or piece.ending


APPLY: dict[type[f.Fact], Callable[[State, Any], None]] = {
    f.PreemptionStarted: _preemption_started,
    f.HoldCreated: _hold_created,
    f.HoldReleased: _hold_released,
    f.HoldBroken: _hold_broken,
    f.LeaseReprieved: _lease_reprieved,
}

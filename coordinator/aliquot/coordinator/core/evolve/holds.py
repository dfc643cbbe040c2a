"""How holds and preemptions change the State."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from aliquot.coordinator.core.books.holds import (
    Hold,
    HoldBroken,
    HoldCreated,
    HoldKind,
    HoldReleased,
    LeaseReprieved,
    PreemptionStarted,
    is_complete,
)
from aliquot.coordinator.core.books.leases.records import (
    SliceEvent,
    SliceState,
    advance,
)
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.counting import expect, put_lease
from aliquot.coordinator.core.evolve.elastic import enlist
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand


def _preemption_started(state: State, fact: PreemptionStarted) -> None:
    for lease_id in fact.victims:
        lease = state.leases[lease_id]
        times = (*lease.preempted_at_ms, fact.at_ms)[-max(fact.kept, 1) :]
        preempted = replace(
            lease,
            preemptions=lease.preemptions + 1,
            reclaims=lease.reclaims + fact.reclaim,
            preempted_at_ms=times,
            seq=state.seq,
        )
        put_lease(state, preempted)
        if not fact.reclaim:
            state.disrupted(lease.request.tenant, fact.at_ms)


def _hold_created(state: State, fact: HoldCreated) -> None:
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
    state.touched.plans = True
    keep(state, hold)


def _lease_reprieved(state: State, fact: LeaseReprieved) -> None:
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
    """Keep its devices for its owner, and look at it when its time is up."""
    for uuid in hold.device_uuids:
        state.hold_of_device[uuid] = hold.owner
        if not state.inventory.has_device(uuid):
            continue  # it vanished with its node's last registration: the hold is about to be broken
        state.inventory.withhold(uuid, hold.owner)
        state.node_touched(state.inventory.device_record(uuid).node_id)
    state.timers.add(hold.expires_ms, Due.HOLD, hold.owner)
    if hold.kind is HoldKind.PREEMPTION:
        state.lines.serve(hold.owner, served=True)
    expect(state, hold.owner, hold)
    look_at_hold(state, hold.owner)


def _hold_released(state: State, fact: HoldReleased) -> None:
    drop_hold(state, fact.owner)


def _hold_broken(state: State, fact: HoldBroken) -> None:
    drop_hold(state, fact.owner)


def drop_hold(state: State, owner: str) -> None:
    """Forget a hold: its devices are open to all again."""
    hold = state.holds.pop(owner)
    state.touched.plans = True
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
    """A device's use or health has changed: look whether its hold is complete."""
    owner = state.hold_of_device.get(uuid)
    if owner is not None:
        look_at_hold(state, owner)


def look_at_host(state: State, node_id: str, demand: Demand) -> None:
    """A member of `demand` has come to a node, or left it: look whether holds there are complete."""
    if state.hold_of_device and (demand.cpu_milli or demand.host_memory_bytes or demand.affinity_group):
        devices = state.inventory.node(node_id).devices
        for owner in {state.hold_of_device.get(device.spec.uuid): None for device in devices}:
            if owner is not None:
                look_at_hold(state, owner)


def look_at_kept(state: State, uuids: Iterable[str]) -> None:
    """Devices have come or gone: look at the holds that keep them, and at what their owners will be granted."""
    for owner in {state.hold_of_device.get(uuid): None for uuid in uuids}:
        if owner is not None:
            expect(state, owner, state.holds[owner])
            look_at_hold(state, owner)


def look_at_hold(state: State, owner: str) -> None:
    """Note whether a hold is complete."""
    if is_complete(state.leases, state.inventory, state.holds[owner]):
        state.ready_holds[owner] = None
    else:
        state.ready_holds.pop(owner, None)


def _index(state: State) -> None:
    for hold in state.holds.values():
        keep(state, hold)


SUBJECT = Subject(
    name="holds",
    apply=by_kind(_preemption_started, _hold_created, _hold_released, _hold_broken, _lease_reprieved),
    saves=(
        saving.records("holds", Hold, "holds", key="owner", order=""),
        saving.pairs("disruptions", tuple[int, ...], "disruptions"),
    ),
    index=_index,
)

"""How elastic leases change their shape: what they give back, what they keep after all, what is acknowledged.

Growth is applied with the grants (`leases.evolve`).
"""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.elastic import LeaseShrinking, ShapeAcknowledged, SlicesKept, is_elastic
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceEvent, SliceState, advance
from aliquot.coordinator.core.evolve import counting
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due


def _lease_shrinking(state: State, fact: LeaseShrinking) -> None:
    lease = state.leases[fact.lease_id]
    ids = set(fact.slice_ids)
    fresh = any(piece.slice_id in ids and not piece.shed for piece in lease.slices)
    failed = tuple(p.plan.device_uuid for p in lease.slices if p.slice_id in ids and p.state is SliceState.FAILED)
    slices = tuple(
        _give_back(state, lease, piece, fact) if piece.slice_id in ids else piece
        for piece in lease.slices
        if piece.slice_id not in ids or piece.holds_capacity
    )
    lease = replace(
        lease,
        slices=slices,
        shape=lease.shape + fresh,
        resized_ms=fact.at_ms,
        avoid_device_uuids=failed or lease.avoid_device_uuids,
        seq=state.seq,
    )
    if lease.gives_back:
        state.ending[fact.lease_id] = None
    counting.put_lease(state, lease)
    if fact.notice:
        state.timers.add(fact.deadline_ms, Due.SHRINK, fact.lease_id)
    state.reshaped.move(fact.at_ms)


def _give_back(state: State, lease: Lease, piece: Slice, fact: LeaseShrinking) -> Slice:
    """The slice after its notice, or its end. A slice that was never confirmed needs no notice."""
    now = piece.resume or piece.state
    unknown = now is SliceState.GRANTED and not state.nodes[piece.plan.node_id].spec.agentless
    event = SliceEvent.PREEMPT if fact.notice and not unknown else SliceEvent.RELEASE
    state.node_touched(piece.plan.node_id)
    if now is SliceState.RELEASING or (event is SliceEvent.PREEMPT and now is SliceState.PREEMPTING):
        return replace(piece, shed=True)
    moved = advance(piece, event, fact.at_ms, reason=fact.reason, deadline_ms=fact.deadline_ms)
    if moved.state is not piece.state:
        moved = counting.moved(state, lease, piece, moved, fact.at_ms)
    return replace(moved, shed=True)


def _slices_kept(state: State, fact: SlicesKept) -> None:
    lease = state.leases[fact.lease_id]
    ids = set(fact.slice_ids)
    slices = []
    for piece in lease.slices:
        if piece.slice_id in ids and piece.shed and piece.state is SliceState.PREEMPTING:
            state.node_touched(piece.plan.node_id)
            moved = counting.moved(state, lease, piece, advance(piece, SliceEvent.REPRIEVE, fact.at_ms), fact.at_ms)
            slices.append(replace(moved, shed=False, reason="", deadline_ms=0))
        else:
            slices.append(piece)
    lease = replace(lease, slices=tuple(slices), shape=lease.shape + 1, resized_ms=fact.at_ms, seq=state.seq)
    if not lease.gives_back:
        state.ending.pop(fact.lease_id, None)
    counting.put_lease(state, lease)
    state.reshaped.move(fact.at_ms)


def _shape_acknowledged(state: State, fact: ShapeAcknowledged) -> None:
    lease = state.leases[fact.lease_id]
    counting.put_lease(state, replace(lease, acknowledged_shape=fact.shape, seq=state.seq))
    state.reshaped.move(lease.resized_ms)


def enlist(state: State, lease: Lease) -> None:
    """A lease has a grant: remember it if it is elastic."""
    if is_elastic(lease.request):
        state.elastic_begins(lease.lease_id)


SUBJECT = Subject(
    name="elastic",
    apply=by_kind(_lease_shrinking, _slices_kept, _shape_acknowledged),
)

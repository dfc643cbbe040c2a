"""How leases and their slices change the State, fact by fact."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern

from msgspec.structs import force_setattr, replace

from aliquot.common.catalog import vendor_of
from aliquot.coordinator.core.books.elastic import LeaseGrown, grows_at
from aliquot.coordinator.core.books.leases.facts import (
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseQueued,
    LeaseReleasing,
    LeaseRequeued,
    LeasesForgotten,
    SliceActive,
    SliceFailed,
    SliceGone,
    SliceGrant,
    SlicesAdopted,
    SlicesReleasing,
)
from aliquot.coordinator.core.books.leases.records import (
    TERMINAL,
    Lease,
    Slice,
    SliceEvent,
    SliceState,
    advance,
    lease_id_of,
    readopt,
)
from aliquot.coordinator.core.books.maintenance import Phase
from aliquot.coordinator.core.books.use import NO_USE
from aliquot.coordinator.core.evolve import counting, holds, saving
from aliquot.coordinator.core.evolve import elastic as resizing
from aliquot.coordinator.core.evolve import use as using
from aliquot.coordinator.core.evolve.counting import be_patient
from aliquot.coordinator.core.evolve.elastic import enlist
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.evolve.tenancy import offended
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import BrokenInvariant
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import EndReason, RequestSpec

ACCOUNTS_LOOKED_AT = 3
"""For each lease that is forgotten: more than it can have opened."""


def _lease_queued(state: State, fact: LeaseQueued) -> None:
    lease = Lease(
        lease_id=fact.lease_id,
        arrival=fact.arrival,
        request=fact.request,
        created_ms=fact.at_ms,
        key=fact.key,
        body_sha256=fact.body_sha256,
        seq=state.seq,
        by=fact.by,
        entitled=fact.entitled,
    )
    state.next_arrival = max(state.next_arrival, fact.arrival + 1)
    if fact.key:
        state.keys[(fact.request.tenant, fact.key)] = fact.lease_id
    state.leases[fact.lease_id] = lease
    state.arrivals.note(fact.request.demand)
    state.touched.leases[fact.lease_id] = None
    if fact.at_once:
        return
    state.lines.add(lease)
    counting.be_patient(state, lease)
    if (
        state.tenancy.guarantees
        or state.elastic
        or (fact.request.demand.opportunistic and state.lenders)
        or min(state.holding_by_priority, default=lease.request.priority) < lease.request.priority
    ):
        state.offer_again()  # others may have to make room for it


def _lease_granted(state: State, fact: LeaseGranted) -> None:
    lease = state.leases[fact.lease_id]
    if state.lines.place_of(fact.lease_id) is not None:
        state.lines.remove(lease)
        counting.patience_ends(state, lease)
    if fact.lease_id in state.holds:
        holds.drop_hold(state, fact.lease_id)
    if not lease.lease_epoch:
        state.recent.note(lease.created_ms, lease.request.demand)
        state.started += 1
    new = _take(state, lease, fact.lease_epoch, fact.slices, fact.at_ms)
    _set_lease(
        state,
        replace(
            lease,
            slices=lease.slices + new,
            lease_epoch=fact.lease_epoch,
            granted_ms=fact.at_ms,
            active_ms=0,
            note=fact.note,
            not_before_ms=0,
            shape=lease.shape + 1,
            acknowledged_shape=lease.shape + 1,
            slices_made=len(new),
            resized_ms=fact.at_ms,
        ),
    )
    resizing.enlist(state, lease)
    if lease.request.time_limit_ms:
        state.timers.add(fact.at_ms + lease.request.time_limit_ms, Due.TIME_LIMIT, fact.lease_id)
    state.since[Due.CONFIRM].add(fact.at_ms, Due.CONFIRM, fact.lease_id)


def _lease_extended(state: State, fact: LeaseExtended) -> None:
    lease = state.leases[fact.lease_id]
    runs = lease.granted_ms and not lease.waiting
    if runs:
        state.timers.drop(lease.granted_ms + lease.request.time_limit_ms, Due.TIME_LIMIT, fact.lease_id)
        state.timers.add(lease.granted_ms + fact.time_limit_ms, Due.TIME_LIMIT, fact.lease_id)
    extended = replace(lease, request=replace(lease.request, time_limit_ms=fact.time_limit_ms))
    if lease.waiting:  # its place in line may follow from its time limit
        resting = state.lines.is_resting(fact.lease_id)
        state.lines.remove(lease)
        state.lines.add(extended, resting=resting)
    _set_lease(state, extended)


def _lease_grown(state: State, fact: LeaseGrown) -> None:
    lease = state.leases[fact.lease_id]
    new = _take(state, lease, lease.lease_epoch, fact.slices, fact.at_ms)
    _set_lease(
        state,
        replace(
            lease,
            slices=lease.slices + new,
            shape=lease.shape + (not grows_at(lease, fact.at_ms)),
            slices_made=lease.slices_made + len(new),
            resized_ms=fact.at_ms,
        ),
    )
    state.freed_version += 1  # what can be reclaimed from it is new
    state.since[Due.CONFIRM].add(fact.at_ms, Due.CONFIRM, fact.lease_id)


def _take(
    state: State, lease: Lease, lease_epoch: int, grants: tuple[SliceGrant, ...], at_ms: int
) -> tuple[Slice, ...]:
    """New slices of a lease: reserved, indexed and counted; charged at once where no agent will ever confirm them."""
    made = []
    for grant in grants:
        plan = grant.plan
        node = state.nodes[plan.node_id]
        charged = node.spec.agentless
        if node.closure is not None and node.closure.phase is Phase.OPEN:
            state.emptying[plan.node_id] = None
        device = state.inventory.device_record(plan.device_uuid).spec
        piece = Slice(
            slice_id=grant.slice_id,
            lease_epoch=lease_epoch,
            member=grant.member,
            plan=plan,
            state=SliceState.GRANTED,
            since_ms=at_ms,
            model=device.model,
            billing=charged,
            billed_from_ms=at_ms if charged else 0,
            vendor="" if vendor_of(device.model) else device.vendor,
        )
        made.append(piece)
    new = tuple(made)
    demand = lease.request.demand
    member = -1
    for piece in new:
        node_id = piece.plan.node_id
        state.inventory.reserve(piece.plan)
        state.slice_ids_by_node[node_id][piece.slice_id] = None
        using.borrows(state, piece)
        if state.hold_of_device:
            holds.look_at_device(state, piece.plan.device_uuid)
        if piece.member != member:
            member = piece.member
            state.node_touched(node_id)
            state.inventory.reserve_member(node_id, demand)
            holds.look_at_host(state, node_id, demand)
    counting.granted(state, lease, new, at_ms)
    return new


def _slice_active(state: State, fact: SliceActive) -> None:
    lease = move_slice(state, fact.slice_id, SliceEvent.CONFIRM, fact.at_ms, tier=fact.tier, endpoint=fact.endpoint)
    if not lease.active_ms and all(
        piece.state is SliceState.ACTIVE for piece in lease.slices if piece.lease_epoch == lease.lease_epoch
    ):
        _set_lease(state, replace(lease, active_ms=fact.at_ms, failures=0))
    if fact.lease_id in state.elastic:
        state.idle.move(fact.at_ms)


def _slice_failed(state: State, fact: SliceFailed) -> None:
    move_slice(state, fact.slice_id, SliceEvent.FAIL, fact.at_ms, reason=fact.reason, energy_mj=fact.energy_mj)


def _slice_gone(state: State, fact: SliceGone) -> None:
    move_slice(state, fact.slice_id, SliceEvent.GONE, fact.at_ms, energy_mj=fact.energy_mj)


def _slices_adopted(state: State, fact: SlicesAdopted) -> None:
    for slice_id in fact.slice_ids:
        lease = state.leases[lease_id_of(slice_id)]
        old = lease.find(slice_id)
        assert old is not None
        new = counting.moved(state, lease, old, readopt(old, fact.at_ms), fact.at_ms)
        slices = tuple(new if piece is old else piece for piece in lease.slices)
        _set_lease(state, replace(lease, slices=slices))
        state.node_touched(fact.node_id)


def _lease_releasing(state: State, fact: LeaseReleasing) -> None:
    lease = state.leases[fact.lease_id]
    _hold_against(state, lease, fact.reason, fact.at_ms)
    if lease.waiting:
        state.lines.remove(lease)
    event = SliceEvent.PREEMPT if fact.requeue else SliceEvent.RELEASE
    slices = tuple(
        _advance(state, lease, piece, event, fact.at_ms, reason=fact.reason, deadline_ms=fact.deadline_ms)
        if piece.holds_capacity and not _already(piece, event)
        else _shortened(piece, fact.deadline_ms)
        for piece in lease.slices
    )
    state.elastic_ends(fact.lease_id)
    if any(piece.shed for piece in slices):  # all of it ends now, so nothing goes on without these
        slices = tuple(replace(piece, shed=False) for piece in slices)
    for piece in slices:
        if piece.holds_capacity:
            state.node_touched(piece.plan.node_id)
            state.ending[fact.lease_id] = None
    _set_lease(
        state,
        replace(
            lease,
            slices=slices,
            end_reason=fact.reason,
            end_detail=fact.detail,
            requeue=fact.requeue,
            ended_by=fact.by,
            exit_code=lease.exit_code if fact.exit_code is None else fact.exit_code,
        ),
    )
    state.lenders.pop(fact.lease_id, None)
    using.lender_goes(state, lease, fact.at_ms)


def _hold_against(state: State, lease: Lease, reason: EndReason, at_ms: int) -> None:
    """Note an end as `OVER_LIMIT` once, from the moment that it is decided."""
    if reason is EndReason.OVER_LIMIT and lease.end_reason != EndReason.OVER_LIMIT:
        offended(state, lease.request.tenant, lease.request.queue, at_ms)


def _already(piece: Slice, event: SliceEvent) -> bool:
    """Whether the slice is on its way out at least as far as `event` would bring it."""
    state = piece.resume or piece.state
    return state is SliceState.RELEASING or (event is SliceEvent.PREEMPT and state is SliceState.PREEMPTING)


def _shortened(piece: Slice, deadline_ms: int) -> Slice:
    """The slice, with less time left if it had more: a notice never gets longer."""
    if piece.holds_capacity and 0 < deadline_ms < piece.deadline_ms:
        return replace(piece, deadline_ms=deadline_ms)
    return piece


def _slices_releasing(state: State, fact: SlicesReleasing) -> None:
    for slice_id in fact.slice_ids:
        move_slice(state, slice_id, SliceEvent.RELEASE, fact.at_ms, reason=fact.reason)


def _lease_requeued(state: State, fact: LeaseRequeued) -> None:
    lease = state.leases[fact.lease_id]
    lease = replace(
        lease,
        slices=lease.holding,  # of the failed grant, only what still holds capacity
        lease_epoch=lease.lease_epoch + 1,
        end_reason="",
        end_detail="",
        requeue=False,
        note=fact.reason,
        requeues=lease.requeues + 1,
        requeued_ms=fact.at_ms,
        moves=lease.moves + fact.moved,
        failures=lease.failures + fact.failed,
        not_before_ms=fact.not_before_ms,
        avoid_device_uuids=fact.avoid_device_uuids,
        acknowledged_shape=lease.shape,  # there is nothing left to adapt to
        use=replace(
            NO_USE,
            exempt_until_ms=lease.use.exempt_until_ms,
            exempt_reason=lease.use.exempt_reason,
            exempt_by=lease.use.exempt_by,
        ),
    )
    state.lenders.pop(fact.lease_id, None)
    _set_lease(state, lease)
    counting.grant_ends(state, lease)
    counting.be_patient(state, lease)
    state.elastic_ends(fact.lease_id)
    if lease.slices:
        state.ending[fact.lease_id] = None
    resting = fact.not_before_ms > fact.at_ms
    state.lines.add(lease, resting=resting)
    if lease.preempted_at_ms:
        state.since[Due.PREEMPTED].add(lease.preempted_at_ms[0], Due.PREEMPTED, fact.lease_id)
    if resting:
        state.timers.add(fact.not_before_ms, Due.RETRY, fact.lease_id)
    else:
        state.offer_again()


def _lease_ended(state: State, fact: LeaseEnded) -> None:
    lease = state.leases[fact.lease_id]
    if lease.holding:
        raise BrokenInvariant(f"lease {fact.lease_id} ends while it holds {len(lease.holding)} slices")
    _hold_against(state, lease, fact.reason, fact.at_ms)
    if lease.waiting:
        state.lines.remove(lease)
        counting.patience_ends(state, lease)
    counting.grant_ends(state, lease)
    if fact.lease_id in state.holds:
        holds.drop_hold(state, fact.lease_id)
    state.elastic_ends(fact.lease_id)
    state.lenders.pop(fact.lease_id, None)
    _set_lease(
        state,
        replace(
            lease,
            ended_ms=max(fact.at_ms, 1),
            end_reason=fact.reason,
            end_detail=fact.detail,
            requeue=False,
            ended_by=fact.by or lease.ended_by,
        ),
    )
    state.ended.append(fact.lease_id)


def _leases_forgotten(state: State, fact: LeasesForgotten) -> None:
    for lease_id in fact.lease_ids:
        lease = state.leases.pop(lease_id)
        if lease.key and state.keys.get((lease.request.tenant, lease.key)) == lease_id:
            del state.keys[(lease.request.tenant, lease.key)]
        if state.ended and state.ended[0] == lease_id:
            state.ended.popleft()
        else:
            state.ended.remove(lease_id)
        state.touched.leases[lease_id] = None
    state.tenancy.drop_unused(ACCOUNTS_LOOKED_AT * len(fact.lease_ids), fact.at_ms)


# -- helpers


def _set_lease(state: State, lease: Lease) -> None:
    counting.put_lease(state, replace(lease, seq=state.seq))


def _advance(
    state: State,
    lease: Lease,
    piece: Slice,
    event: SliceEvent,
    at_ms: int,
    *,
    tier: int = 0,
    reason: str = "",
    deadline_ms: int = 0,
    endpoint: str = "",
) -> Slice:
    """The slice after `event`, with what that means for the ledger."""
    moved = advance(piece, event, at_ms, tier=tier, reason=reason, deadline_ms=deadline_ms, endpoint=endpoint)
    return moved if moved.state is piece.state else counting.moved(state, lease, piece, moved, at_ms)


def move_slice(
    state: State,
    slice_id: str,
    event: SliceEvent,
    at_ms: int,
    *,
    tier: int = 0,
    reason: str = "",
    endpoint: str = "",
    energy_mj: int | None = None,
) -> Lease:
    """Advance one slice; give its capacity back when it has reached a terminal state."""
    lease = state.leases[lease_id_of(slice_id)]
    piece = lease.find(slice_id)
    if piece is None:
        raise BrokenInvariant(f"lease {lease.lease_id} has no slice {slice_id}")
    moved = _advance(state, lease, piece, event, at_ms, tier=tier, reason=reason, endpoint=endpoint)
    if event is not SliceEvent.CONFIRM:
        state.node_touched(piece.plan.node_id)
        if event is SliceEvent.RELEASE and piece.holds_capacity:
            state.ending[lease.lease_id] = None
    slices = tuple(moved if other is piece else other for other in lease.slices)
    if moved.state in TERMINAL:
        if moved.shed or moved.lease_epoch != lease.lease_epoch:
            slices = tuple(other for other in slices if other is not moved)  # a leftover: its story is over
        _free(state, lease, moved, slices, at_ms)
    drawn_mj = lease.energy_mj if energy_mj is None else (lease.energy_mj or 0) + energy_mj
    lease = replace(lease, slices=slices, seq=state.seq, energy_mj=drawn_mj)
    if lease.lease_id in state.ending and not lease.gives_back:
        del state.ending[lease.lease_id]
    counting.put_lease(state, lease)
    return lease


def _free(state: State, lease: Lease, piece: Slice, slices: tuple[Slice, ...], at_ms: int) -> None:
    counting.freed(state, lease, piece, at_ms)
    state.inventory.release(piece.plan)
    using.borrowed_no_more(state, piece)
    using.inherit(state, piece)
    state.node_touched(piece.plan.node_id)
    on_node = state.slice_ids_by_node[piece.plan.node_id]
    del on_node[piece.slice_id]
    if not on_node:
        state.emptying.pop(piece.plan.node_id, None)
    if not any(
        other.member == piece.member and other.lease_epoch == piece.lease_epoch and other.holds_capacity
        for other in slices
    ):
        state.inventory.release_member(piece.plan.node_id, lease.request.demand)
        holds.look_at_host(state, piece.plan.node_id, lease.request.demand)
    holds.look_at_device(state, piece.plan.device_uuid)
    state.free_capacity()


def _index(state: State) -> None:
    """Who holds what, who waits, and what is due of them."""
    for lease in state.leases.values():
        if lease.key:
            state.keys[(lease.request.tenant, lease.key)] = lease.lease_id
        if not lease.ended:
            _hold(state, lease)
            _await(state, lease)


def _hold(state: State, lease: Lease) -> None:
    demand = lease.request.demand
    holding = lease.holding
    if holding:
        state.count_lease(lease, len(holding))
        if lease.gives_back:
            state.ending[lease.lease_id] = None
        if lease.current and not lease.end_reason:
            enlist(state, lease)
    members: dict[tuple[int, int], Slice] = {}
    for piece in holding:
        state.inventory.reserve(piece.plan)
        state.slice_ids_by_node[piece.plan.node_id][piece.slice_id] = None
        members.setdefault((piece.lease_epoch, piece.member), piece)
    for piece in members.values():
        state.inventory.reserve_member(piece.plan.node_id, demand)


def _await(state: State, lease: Lease) -> None:
    if lease.waiting:
        resting = lease.not_before_ms > state.now_ms
        state.lines.add(lease, resting=resting)
        be_patient(state, lease)
        if lease.preempted_at_ms:
            state.since[Due.PREEMPTED].add(lease.preempted_at_ms[0], Due.PREEMPTED, lease.lease_id)
        if resting:
            state.timers.add(lease.not_before_ms, Due.RETRY, lease.lease_id)
        return
    if lease.ending:
        return
    if lease.request.time_limit_ms:
        state.timers.add(lease.granted_ms + lease.request.time_limit_ms, Due.TIME_LIMIT, lease.lease_id)
    for piece in lease.slices:
        if piece.shed and piece.deadline_ms:
            state.timers.add(piece.deadline_ms, Due.SHRINK, lease.lease_id)
    if lease.lease_id in state.elastic:
        state.since[Due.CONFIRM].add(lease.resized_ms, Due.CONFIRM, lease.lease_id)
    if not lease.active_ms:
        state.since[Due.CONFIRM].add(lease.granted_ms, Due.CONFIRM, lease.lease_id)


def _sharing() -> Callable[[Lease], Lease]:
    requests: dict[RequestSpec, RequestSpec] = {}

    def share(lease: Lease) -> Lease:
        """What leases have in common that were asked for by calls: most of what they take."""
        force_setattr(lease, "request", requests.setdefault(lease.request, lease.request))
        force_setattr(lease, "by", intern(lease.by))
        if lease.use == NO_USE:
            force_setattr(lease, "use", NO_USE)
        for piece in lease.slices:
            force_setattr(piece, "model", intern(piece.model))
            force_setattr(piece.plan, "node_id", intern(piece.plan.node_id))
            force_setattr(piece.plan, "device_uuid", intern(piece.plan.device_uuid))
        return lease

    return share


SUBJECT = Subject(
    name="leases",
    apply=by_kind(
        _lease_queued,
        _lease_granted,
        _lease_grown,
        _slice_active,
        _slice_failed,
        _slice_gone,
        _slices_adopted,
        _lease_releasing,
        _lease_extended,
        _slices_releasing,
        _lease_requeued,
        _lease_ended,
        _leases_forgotten,
    ),
    saves=(
        saving.value("next_arrival", int, "next_arrival", 1),
        saving.records("leases", Lease, "leases", key="lease_id", order="arrival", sharing=_sharing),
        saving.rows("ended", str, "ended"),
    ),
    index=_index,
)

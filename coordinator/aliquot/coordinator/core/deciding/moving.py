"""Moving leases: to make room for a large request that has waited for long.

A move is made of facts that exist for other reasons: the old slices are told to go, the lease goes back to its line and
is granted anew, all in one group. So its new place is held before the old one is given up, its state is never in doubt,
and a crash between the two finds it granted once. To its launcher it looks like a preemption that was granted again
at once: the program gets its grace, and starts again under a higher `lease_epoch`. Only leases that were marked movable
are moved, and each only once in a while.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aliquot.coordinator.core.books.elastic import is_elastic
from aliquot.coordinator.core.books.holds import Hold, HoldCreated, HoldKind
from aliquot.coordinator.core.books.leases.facts import LeaseRequeued, SliceGone, SlicesReleasing
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.validity import objection
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, granted, sterner, suspended
from aliquot.coordinator.core.rules.moving import cheapest, evacuate, last_to_leave
from aliquot.coordinator.core.rules.patience import is_late
from aliquot.coordinator.core.rules.preemption.leaving import Expected
from aliquot.coordinator.core.rules.trial import LeaseMove, Moves, PlacedLease
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, Placement

MOVED_REST_MS = 600_000
"""A lease that was granted anew so lately is left alone: nobody is moved twice in a row."""


class _LazyLeasesByNode(dict[str, Sequence[PlacedLease]]):
    """The leases of each node, read when the node is first looked at."""

    def __init__(self, known: Known, now_ms: int) -> None:
        super().__init__()
        self._known = known
        self._now_ms = now_ms

    def get(self, node_id: str, default: object = None) -> Sequence[PlacedLease]:
        """The leases of one node, by their ids."""
        del default
        found = self.setdefault(node_id, ())
        if not found:
            lease_ids = dict.fromkeys(lease_id_of(slice_id) for slice_id in self._known.slice_ids_by_node[node_id])
            found = self[node_id] = tuple(
                placed_lease(self._known, self._known.leases[lease_id], self._now_ms) for lease_id in sorted(lease_ids)
            )
        return found


def placed_lease(known: Known, lease: Lease, now_ms: int) -> PlacedLease:
    """A lease as the deciders of moves see it."""
    return PlacedLease(lease.lease_id, lease.request.demand, placement_of(lease), _movable(known, lease, now_ms))


def placement_of(lease: Lease) -> Placement:
    """What a lease holds, of whatever grant."""
    members: dict[tuple[int, int], list[int]] = {}
    for number, piece in enumerate(lease.slices):
        if piece.holds_capacity:
            members.setdefault((piece.lease_epoch, piece.member), []).append(number)
    slices = tuple(tuple(lease.slices[number].plan for number in numbers) for numbers in members.values())
    return Placement(slices, tuple(plans[0].node_id for plans in slices))


def _movable(known: Known, lease: Lease, now_ms: int) -> bool:
    """Whether a lease may be moved now, and was not just granted."""
    rest_ms = max(lease.request.min_run_ms, MOVED_REST_MS if lease.requeues else 0)
    return now_ms >= lease.granted_ms + rest_ms and _may_move(known, lease)


def _may_move(known: Known, lease: Lease) -> bool:
    """Whether a lease is marked movable, active as a whole, and not elastic. A gang is moved whole, or not at all."""
    request = lease.request
    if not request.movable or request.min_count or request.max_count:
        return False
    if lease.ending or lease.ended:
        return False
    for piece in lease.slices:
        if piece.lease_epoch != lease.lease_epoch:
            return False
        agentless = lifecycle.is_agentless(known, piece)
        if piece.state is not SliceState.ACTIVE and not (agentless and piece.state is SliceState.GRANTED):
            return False
    return True


def move(known: Known, planned: LeaseMove, why: str, now_ms: int) -> list[Fact] | None:
    """The facts of one move; None where a limit forbids that the lease holds both places for a moment."""
    lease = known.leases[planned.lease_id]
    request = lease.request
    chain = chain_of(known, request)
    if suspended(known, request, now_ms) or forbidden(known, request, chain, planned.target, now_ms, ()):
        return None
    if objection(known.engine, sterner(known, request, request.demand, now_ms), planned.target):
        return None
    reason = f"moved: {why}"
    old = [piece for piece in lease.slices if piece.holds_capacity]
    ids = tuple(piece.slice_id for piece in old)
    facts: list[Fact] = [SlicesReleasing(at_ms=now_ms, lease_id=lease.lease_id, slice_ids=ids, reason=reason)]
    facts += [
        SliceGone(at_ms=now_ms, lease_id=lease.lease_id, slice_id=piece.slice_id)
        for piece in old
        if lifecycle.is_agentless(known, piece)
    ]
    facts.append(LeaseRequeued(at_ms=now_ms, lease_id=lease.lease_id, reason=reason, moved=True))
    target = Placement(planned.target.members, planned.target.node_ids, reason)
    facts.append(granted(lease.lease_id, lease.lease_epoch + 2, target, now_ms))
    return facts


def move_away(
    known: Known, lease: Lease, why: str, now_ms: int, *, leaving: Collection[Slice] = ()
) -> list[Fact] | None:
    """The facts that grant a lease elsewhere because it can't stay; None where it can't be moved.

    An elastic lease moves only the members of the slices that are `leaving`; any other moves whole, gangs too.
    """
    if is_elastic(lease.request):
        return resizing.replace_members(known, lease, leaving, f"moved: {why}", now_ms)
    if not _may_move(known, lease):
        return None
    demand = lease.request.demand
    target = known.engine.place(demand)
    if target is None:
        return None
    return move(known, LeaseMove(lease.lease_id, placement_of(lease), target), why, now_ms)


def could_make_room(known: Known, lease: Lease, demand: Demand, now_ms: int) -> bool:
    """Whether `make_room` would find room for a request once it has waited for long enough. Changes nothing."""
    budget = known.engine.moves
    if demand.count < 2 or not known.movable_slices or not budget.may_plan(demand, now_ms):
        return False
    queue = known.tenancy.queue_of(lease.request.tenant, lease.request.queue)
    if not known.tenancy.queue_spec(queue).reserve_after_ms:
        return False
    with known.inventory.trial():
        found = evacuate(known.engine, _LazyLeasesByNode(known, now_ms), demand, moves_max=budget.available)
    return found is not None


def make_room(known: Known, lease: Lease, demand: Demand, now_ms: int) -> list[Fact]:
    """Facts that empty a place for a request that has waited as long as its queue says, and keep it; or none."""
    hold = known.holds.get(lease.lease_id)
    if not known.movable_slices and hold is None:
        return []  # what is kept for it may be enough together with what is free, whoever may be moved
    if demand.count < 2:
        return []  # whoever holds less than it asks for could go; for one device there is nobody
    if not is_late(known, lease, now_ms):
        return []
    budget = known.engine.moves
    if not budget.may_plan(demand, now_ms):
        return clear_one(known, lease, hold, now_ms) if hold is not None else []
    with known.inventory.trial() as inventory:
        inventory.open_devices(hold.device_uuids if hold is not None else ())  # it may be most of the room it needs
        found = evacuate(known.engine, _LazyLeasesByNode(known, now_ms), demand, moves_max=budget.available)
    facts = holding.give_up_of(known, lease.lease_id, now_ms, "room is made by moving others")
    for planned in found.moves if found is not None else ():
        moved = move(known, planned, f"lease {lease.lease_id} needs the room", now_ms)
        if moved is None:
            found = None
            break
        facts += moved
    if found is None:
        budget.rest(demand, now_ms)
        return clear_one(known, lease, hold, now_ms) if hold is not None else []
    budget.spend(len(found.moves))
    grace_ms = max((known.leases[planned.lease_id].request.grace_ms for planned in found.moves), default=0)
    facts.append(
        HoldCreated(
            at_ms=now_ms,
            owner=lease.lease_id,
            kind=HoldKind.PREEMPTION,
            placement=found.placement,
            expires_ms=now_ms + grace_ms + known.config.hold_slack_ms,
            start_ms=now_ms + grace_ms,
        )
    )
    return facts


def place_to_clear(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Expected | None:
    """The place from which the fewest have to go, where a queue orders by slowdown and some may be moved; else None.

    `clear_one` then moves them, one by one. Where a request would start soonest by itself is often where others like it
    end: those go from one to the next without that, and for a request that is late nevertheless they are too few.
    """
    queue = known.tenancy.queue_of(lease.request.tenant, lease.request.queue)
    if known.tenancy.queue_spec(queue).policy is not QueuePolicy.SLOWDOWN or demand.count < 2:
        return None
    if not known.movable_slices or not known.engine.moves.available:
        return None
    return cheapest(known, _LazyLeasesByNode(known, now_ms), demand, now_ms, known.engine.moves.available)


def clear_one(known: Known, lease: Lease, hold: Hold, now_ms: int) -> list[Fact]:
    """Facts that move one lease off the devices that are kept for somebody: whoever would leave them last.

    All others would end before it, so that one move brings the start forward the most. It goes where something has
    just become free; when nothing is, its turn comes with what is freed next. Only queues that order by slowdown make
    room so, by the budget of moves.
    """
    budget = known.engine.moves
    queue = known.tenancy.queue_of(lease.request.tenant, lease.request.queue)
    by_due = known.tenancy.queue_spec(queue).policy is QueuePolicy.SLOWDOWN
    if not by_due or hold.kind is not HoldKind.RESERVATION or not budget.available or not known.movable_slices:
        return []
    last = last_to_leave(known, hold, now_ms)
    if last is None or not _movable(known, last, now_ms) or last.request.demand.gang_size > budget.available:
        return []
    placed = placed_lease(known, last, now_ms)
    with known.inventory.trial():
        target = Moves(known.engine).move(placed, avoid_node_ids=hold.placement.node_ids)
    if target is None:
        return []
    planned = LeaseMove(last.lease_id, placed.placement, target)
    facts = move(known, planned, f"lease {hold.owner} needs the room", now_ms)
    if facts is None:
        return []
    budget.spend(last.request.demand.gang_size)  # each member restarts
    return facts

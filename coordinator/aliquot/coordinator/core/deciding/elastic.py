"""How elastic leases grow and shrink: what is due, what their launchers acknowledge, what they lose.

They grow one member at a time, by priority, into capacity that has been on offer for a while and that nobody who
waits could use. Each rests after a change, and does not grow before its launcher has acknowledged the last one. What a
lease gives back (`shrinking` decides what) runs on until its launcher acknowledges or its notice is over.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aliquot.coordinator.core.books.elastic import (
    LeaseGrown,
    LeaseShrinking,
    ShapeAcknowledged,
    SlicesKept,
    bounds_of,
    free_numbers,
    grows_at,
    is_elastic,
    is_settled,
    members_of,
    one_member,
    spare_members,
)
from aliquot.coordinator.core.books.leases.facts import SliceGone, SliceGrant
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of, slice_id_of
from aliquot.coordinator.core.commands import AcknowledgeShape
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.memory import GrowthRound
from aliquot.coordinator.core.placement.gang import on_cards_of
from aliquot.coordinator.core.rules.elastic import Ceiling, ceiling_of
from aliquot.coordinator.core.rules.granting import offer, sterner
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS
from aliquot.coordinator.core.values.errors import InvalidField
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

TRIED_MAX = 32
"""Leases that one step of a round looks at."""
LOOK_AGAIN_MS = 60_000
"""Changes without a fact of their own (a budget's next period) are noticed after this long."""


def grow(known: Known, _: str, now_ms: int) -> list[Fact]:
    """Let the next elastic lease of the round grow by a member, or give back what a rule of its queue denies it.

    A round offers every lease one member, by priority; a round in which a lease grew is followed by another. A step
    looks at a bounded number of leases, so that it never holds up the writer.
    """
    if known.memory.growth_due_ms > now_ms:
        return []  # an older entry: there is a later one
    known.memory.growth_due_ms = 0
    if known.wants_admission():
        known.memory.growth_round = None
        known.look_for_growth(now_ms + 1_000)
        return []
    if known.memory.growth_round is None:
        known.memory.growth_round = _begin_round(known, now_ms)
    growth = known.memory.growth_round
    for _number in range(TRIED_MAX):
        if not growth.lease_ids or growth.grew_priority > _priority(known, growth.lease_ids[-1]):
            # Before a lower priority has its turn, the higher one gets all that it can use.
            known.memory.growth_round = None
            if growth.again_ms < NEVER_MS:
                known.look_for_growth(growth.again_ms)
            return []
        lease_id = growth.lease_ids.pop()
        facts = _look(known, growth, lease_id, now_ms)
        if facts:
            growth.again_ms = now_ms
            growth.grew_priority = _priority(known, lease_id)
            known.look_for_growth(now_ms)
            return facts
    known.look_for_growth(now_ms)
    return []


def _begin_round(known: Known, now_ms: int) -> GrowthRound:
    """The leases that may grow, the first one last; all leases where queues have rules."""
    rules = any(queue.spec.scaling for queue in known.tenancy.queues.values())
    found: list[tuple[int, int, int, str]] = []
    for lease_id in known.elastic:
        lease = known.leases[lease_id]
        request = lease.request
        start = request.demand.gang_size * request.demand.count
        if rules or len(lease.slices) < max(start, request.max_count):
            found.append((request.priority, -len(lease.slices) * 1000 // start, -lease.arrival, lease_id))
    found.sort()
    again_ms = now_ms + LOOK_AGAIN_MS if found else NEVER_MS
    return GrowthRound([lease_id for *_order, lease_id in found], again_ms)


def _priority(known: Known, lease_id: str) -> int:
    return known.leases[lease_id].request.priority if lease_id in known.elastic else NEVER_MS


def _look(known: Known, growth: GrowthRound, lease_id: str, now_ms: int) -> list[Fact]:
    if lease_id not in known.elastic:
        return []
    lease = known.leases[lease_id]
    growing = grows_at(lease, now_ms)
    if not growing and not is_settled(lease, lambda piece: _agentless(known, piece)):
        return []
    members, ceiling = len(members_of(lease)), ceiling_of(known, lease, now_ms)
    if members == ceiling.members:
        return []
    rested_ms = lease.resized_ms + known.config.growth_rest_ms
    if not growing and rested_ms > now_ms and lease.resized_ms > lease.granted_ms:
        growth.again_ms = min(growth.again_ms, rested_ms)
        return []
    if members > ceiling.members:
        return _give_back(known, lease, ceiling, now_ms)
    if not growing and lease.acknowledged_shape != lease.shape:
        return []
    return _one_more(known, lease, now_ms)


def _one_more(known: Known, lease: Lease, now_ms: int) -> list[Fact]:
    wanted = sterner(known, lease.request, one_member(lease.request.demand), now_ms)
    demand = wanted.avoiding(lease.avoid_device_uuids + _own_cards(known, lease))
    found = offer(known, lease.request, demand, now_ms)
    if found.placement is None:
        return []
    number = free_numbers(lease, 1)[0]
    grants = tuple(
        SliceGrant(slice_id_of(lease.lease_id, lease.lease_epoch, lease.slices_made + index), number, plan)
        for index, plan in enumerate(found.placement.members[0])
    )
    return [LeaseGrown(at_ms=now_ms, lease_id=lease.lease_id, slices=grants)]


def _own_cards(known: Known, lease: Lease) -> tuple[str, ...]:
    """Devices on which it may have no further member, as it has one on their card."""
    own = [piece.plan.device_uuid for piece in lease.holding] if lease.request.demand.apart else ()
    return on_cards_of(known.inventory, own)


def _give_back(known: Known, lease: Lease, ceiling: Ceiling, now_ms: int) -> list[Fact]:
    """Give notice to the members that a rule of its queue denies it now."""
    pieces = [piece for member in spare_members(lease, ceiling.members) for piece in member]
    return [
        LeaseShrinking(
            at_ms=now_ms,
            lease_id=lease.lease_id,
            slice_ids=tuple(piece.slice_id for piece in pieces),
            deadline_ms=now_ms + lease.request.grace_ms,
            reason=ceiling.reason,
            notice=True,
        )
    ]


def acknowledge(known: Known, command: AcknowledgeShape, now_ms: int) -> Decision[None]:
    """The launcher has adapted: what it gives back is stopped now. An older shape than the present changes nothing."""
    lease = known.lease(command.lease_id)
    if not 0 < command.shape <= lease.shape:
        raise InvalidField("shape", f"lease {lease.lease_id} is at shape {lease.shape}, not {command.shape}")
    if command.shape < lease.shape or lease.ended or lease.ending or lease.waiting:
        return NOTHING
    facts: list[Fact] = []
    if lease.acknowledged_shape != lease.shape:
        facts.append(ShapeAcknowledged(at_ms=now_ms, lease_id=lease.lease_id, shape=command.shape))
    return Decision((*facts, *_stop(known, lease, _noticed(lease), now_ms)))


def notice_over(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    """A launcher has not acknowledged in time: it loses the slices anyway."""
    lease = known.leases.get(lease_id)
    if lease is None or lease.ended or lease.ending:
        return []
    return _stop(known, lease, [piece for piece in _noticed(lease) if piece.deadline_ms <= now_ms], now_ms)


def unconfirmed(known: Known, lease: Lease, now_ms: int) -> list[Fact]:
    """Members that an elastic lease gained and that their agents have not confirmed in time are given up."""
    silent = [
        piece
        for piece in lease.current
        if (piece.resume or piece.state) is SliceState.GRANTED
        and piece.since_ms + known.config.confirm_timeout_ms <= now_ms
        and not _agentless(known, piece)
    ]
    if not silent:
        return []
    return go_on_without(known, lease, silent, "NOT_CONFIRMED", now_ms) or []


def go_on_without(
    known: Known, lease: Lease, lost: Iterable[Slice], reason: str, now_ms: int, *, notice_ms: int = 0
) -> list[Fact] | None:
    """Facts that drop the members of these slices, at once or with notice; None where the lease is rigid, or too
    little would be left.
    """
    if not lease.active_ms or lease.ending or not is_elastic(lease.request):
        return None
    numbers = {piece.member for piece in lost}
    if len(members_of(lease).keys() - numbers) < bounds_of(lease.request).least:
        return None
    lost_ids = {piece.slice_id for piece in lost}
    gone = [piece for piece in lease.current if piece.member in numbers]
    siblings = [piece for piece in gone if piece.slice_id not in lost_ids]
    shrinking = LeaseShrinking(
        at_ms=now_ms,
        lease_id=lease.lease_id,
        slice_ids=tuple(piece.slice_id for piece in gone),
        deadline_ms=now_ms + (notice_ms or lease.request.grace_ms),
        reason=reason,
        notice=notice_ms > 0,
    )
    if shrinking.notice:
        return [shrinking]
    return [shrinking, *_gone_without_agent(known, lease, siblings, now_ms)]


def replace_members(
    known: Known, lease: Lease, leaving: Iterable[Slice], reason: str, now_ms: int
) -> list[Fact] | None:
    """Facts that give a movable lease members elsewhere and give notice to those of these slices, in one change: it
    never has fewer than now. None where it may not be moved, is changing already, or nothing is free.
    """
    request = lease.request
    rested = now_ms >= lease.resized_ms + known.config.growth_rest_ms or lease.resized_ms == lease.granted_ms
    settled = is_settled(lease, lambda piece: _agentless(known, piece)) and lease.acknowledged_shape == lease.shape
    numbers = {piece.member for piece in leaving if not piece.ending}
    if not (request.movable and settled and rested and numbers) or lease.lease_id not in known.elastic:
        return None
    demand = sterner(known, request, one_member(request.demand), now_ms)
    demand = demand.avoiding(lease.avoid_device_uuids + _own_cards(known, lease))
    if len(numbers) > 1:
        demand = msgspec.structs.replace(demand, gang_size=len(numbers))
    found = offer(known, request, demand, now_ms)
    if found.placement is None:
        return None
    members = found.placement.members
    fresh = [
        (number, plan)
        for number, plans in zip(free_numbers(lease, len(members)), members, strict=True)
        for plan in plans
    ]
    grants = tuple(
        SliceGrant(slice_id_of(lease.lease_id, lease.lease_epoch, lease.slices_made + index), number, plan)
        for index, (number, plan) in enumerate(fresh)
    )
    old = tuple(piece.slice_id for piece in lease.current if piece.member in numbers)
    deadline_ms = now_ms + request.grace_ms
    return [
        LeaseGrown(at_ms=now_ms, lease_id=lease.lease_id, slices=grants),
        LeaseShrinking(now_ms, lease.lease_id, slice_ids=old, deadline_ms=deadline_ms, reason=reason, notice=True),
    ]


def keep(known: Known, slice_ids: Iterable[str], now_ms: int, reason: str) -> list[Fact]:
    """Let slices go on whose notice is not over yet."""
    by_lease: dict[str, list[str]] = {}
    for slice_id in slice_ids:
        lease = known.leases.get(lease_id_of(slice_id))
        piece = lease.find(slice_id) if lease is not None and not lease.end_reason else None
        if piece is not None and piece.shed and piece.state is SliceState.PREEMPTING:
            by_lease.setdefault(lease_id_of(slice_id), []).append(slice_id)
    return [
        SlicesKept(at_ms=now_ms, lease_id=lease_id, slice_ids=tuple(ids), reason=reason)
        for lease_id, ids in by_lease.items()
    ]


def on_notice(piece: Slice) -> bool:
    """Whether an elastic lease gives this back, but it runs on until that is acknowledged, or over."""
    return piece.shed and (piece.resume or piece.state) is SliceState.PREEMPTING


def _noticed(lease: Lease) -> list[Slice]:
    return [piece for piece in lease.slices if on_notice(piece)]


def _stop(known: Known, lease: Lease, pieces: list[Slice], now_ms: int) -> list[Fact]:
    """End slices whose notice is over. Without an agent they are gone at once."""
    if not pieces:
        return []
    shrinking = LeaseShrinking(
        at_ms=now_ms,
        lease_id=lease.lease_id,
        slice_ids=tuple(piece.slice_id for piece in pieces),
        deadline_ms=now_ms + known.config.shrink_stop_ms,
        reason=pieces[0].reason,
    )
    return [shrinking, *_gone_without_agent(known, lease, pieces, now_ms)]


def _gone_without_agent(known: Known, lease: Lease, pieces: Iterable[Slice], now_ms: int) -> list[Fact]:
    return [
        SliceGone(at_ms=now_ms, lease_id=lease.lease_id, slice_id=piece.slice_id)
        for piece in pieces
        if _agentless(known, piece)
    ]


def _agentless(known: Known, piece: Slice) -> bool:
    return known.nodes[piece.plan.node_id].spec.agentless


DECIDES = Decides(commands=by_kind(acknowledge), due={Due.GROWTH: grow, Due.SHRINK: notice_over})

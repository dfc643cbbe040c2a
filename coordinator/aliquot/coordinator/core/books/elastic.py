"""Elastic leases: how many members one may have, and which of them it can spare.

An elastic lease starts with what it asks for (`gang_size` members of `count` slices each, all or nothing), keeps at
least `min_count` slices and can use at most `max_count`. It grows and shrinks by whole members, so that a member is
always complete and on one node. What it holds beyond its start is *extra*: taken because it was idle, given back to
whoever waits for it, and protected by nobody's guarantee. Members between the least and the start are given back only
to those who could otherwise end the lease as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.leases.facts import SliceGrant
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, RequestSpec


class Bounds(NamedTuple):
    """How many members a lease keeps in any case, starts with, and can use at most."""

    least: int
    start: int
    most: int


ONE_GO_MS = 1_000
"""Members gained within this time are one change of shape."""

Member = tuple[Slice, ...]
"""The slices of one member that are neither ended nor on their way out."""


def is_elastic(request: RequestSpec) -> bool:
    """Whether a lease of this request may have more or fewer members than it asks for."""
    return bool(request.min_count or request.max_count) and bool(request.demand.count)


def bounds_of(request: RequestSpec) -> Bounds:
    """See `Bounds`. A rigid request has three equal numbers."""
    start = request.demand.gang_size
    if not is_elastic(request):
        return Bounds(start, start, start)
    count = request.demand.count
    least = min(start, -(-request.min_count // count)) if request.min_count else start
    return Bounds(max(1, least), start, max(start, request.max_count // count))


def one_member(demand: Demand) -> Demand:
    """What one more member demands."""
    return msgspec.structs.replace(demand, gang_size=1) if demand.gang_size != 1 else demand


def members_of(lease: Lease) -> dict[int, Member]:
    """The members that make the lease up, by number."""
    found: dict[int, list[Slice]] = {}
    for piece in lease.current:
        if piece.holds_capacity:
            found.setdefault(piece.member, []).append(piece)
    return {number: tuple(found[number]) for number in sorted(found)}


def spare_members(lease: Lease, keep: int) -> list[Member]:
    """The members beyond `keep`, the highest numbers first."""
    members = members_of(lease)
    return [members[number] for number in sorted(members, reverse=True)[: max(0, len(members) - keep)]]


def core_of(lease: Lease) -> tuple[Slice, ...]:
    """What counts against its owner's guarantee: what it holds, without extra or leaving members."""
    if not is_elastic(lease.request):
        return lease.holding
    if lease.end_reason or not any(piece.lease_epoch == lease.lease_epoch for piece in lease.slices):
        return lease.holding
    extra = {piece.slice_id for member in spare_members(lease, bounds_of(lease.request).start) for piece in member}
    return tuple(piece for piece in lease.holding if not piece.shed and piece.slice_id not in extra)


def is_settled(lease: Lease, agentless: Callable[[Slice], bool]) -> bool:
    """Whether all its slices are active: it neither grows nor shrinks.

    `agentless` tells slices that nobody ever confirms.
    """
    if lease.ended or lease.end_reason or not lease.current:
        return False
    return all(
        not piece.shed
        and (piece.state is SliceState.ACTIVE or (piece.state is SliceState.GRANTED and agentless(piece)))
        for piece in lease.slices
    )


def grows_at(lease: Lease, at_ms: int) -> bool:
    """Whether it is growing at this moment: what it gains in one go is one change of shape, however many members."""
    if lease.shape != lease.acknowledged_shape + 1 or not lease.resized_ms <= at_ms <= lease.resized_ms + ONE_GO_MS:
        return False
    if any(piece.shed or piece.state not in (SliceState.GRANTED, SliceState.ACTIVE) for piece in lease.slices):
        return False
    return any(p.state is SliceState.GRANTED and p.since_ms >= at_ms - ONE_GO_MS for p in lease.slices)


def free_numbers(lease: Lease, count: int) -> list[int]:
    """The lowest member numbers that no slice of this grant has any more."""
    taken = {piece.member for piece in lease.slices if piece.lease_epoch == lease.lease_epoch}
    found: list[int] = []
    number = 0
    while len(found) < count:
        if number not in taken:
            found.append(number)
        number += 1
    return found


# --------------------
# What has happened to the shape of elastic leases.


class LeaseGrown(Fact, frozen=True, tag="grown"):
    """An elastic lease holds more members. Their numbers are fresh or those of members that are gone."""

    lease_id: str
    slices: tuple[SliceGrant, ...]


class LeaseShrinking(Fact, frozen=True, tag="shed"):
    """An elastic lease gives these slices back and goes on without them.

    With `notice` they run until the deadline, or until the launcher acknowledges; without, they are being stopped.
    What holds nothing any more is forgotten.
    """

    lease_id: str
    slice_ids: tuple[str, ...]
    deadline_ms: int
    reason: str
    notice: bool = False


class SlicesKept(Fact, frozen=True, tag="kept"):
    """Slices that were to be given back stay: nobody needs their capacity any more."""

    lease_id: str
    slice_ids: tuple[str, ...]
    reason: str = ""


class ShapeAcknowledged(Fact, frozen=True, tag="shapeack"):
    """The launcher of an elastic lease has adapted to this shape."""

    lease_id: str
    shape: int

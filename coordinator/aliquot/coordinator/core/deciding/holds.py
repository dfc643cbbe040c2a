"""Holds: used when complete, broken when they can't be, given up in time; victims that nobody needs are reprieved."""

from __future__ import annotations

from collections.abc import Collection

from aliquot.coordinator.core.books.holds import (
    Hold,
    HoldBroken,
    HoldKind,
    HoldReleased,
    LeaseReprieved,
    can_complete,
    is_complete,
)
from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.validity import objection
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, granted, is_entitled, sterner, suspended
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.troubles import WorkKey, WorkKind
from aliquot.coordinator.core.values.types import EndReason


def use_complete(known: Known, now_ms: int) -> Decision[None] | None:
    """Grant the first complete hold; give it up where a limit forbids it or its devices no longer suit the request."""
    troubles = known.memory.troubles
    for owner in known.ready_holds:
        if troubles and troubles.rests(owner):
            continue
        work = WorkKey(WorkKind.ADMISSION, owner)
        with troubles.blaming(work):
            facts = _use(known, known.holds[owner], now_ms)
        troubles.drop(work)
        return Decision(tuple(facts))
    return None


def _use(known: Known, hold: Hold, now_ms: int) -> list[Fact]:
    lease = known.leases[hold.owner]
    if not is_complete(known.leases, known.inventory, hold):
        # The index is wrong. Passing over it, one would come back to it for ever.
        return give_up(known, hold, now_ms, "its devices are not free after all")
    over = suspended(known, lease.request, now_ms) or forbidden(
        known, lease.request, chain_of(known, lease.request), hold.placement, now_ms, lease.preempted_at_ms
    )
    demand = sterner(known, lease.request, lease.request.demand, now_ms)
    why_not = over.detail if over is not None else objection(known.engine, demand, hold.placement)
    if why_not:
        return give_up(known, hold, now_ms, why_not)
    return [granted(hold.owner, lease.lease_epoch + 1, hold.placement, now_ms)]


def break_lost(known: Known, now_ms: int) -> list[Fact]:
    """Holds that can't become complete any more: their owners are decided on anew."""
    facts: list[Fact] = []
    troubles = known.memory.troubles
    for hold in known.holds.values():
        if troubles and troubles.rests(hold.owner):
            continue
        with troubles.blaming(WorkKey(WorkKind.ADMISSION, hold.owner)):
            if not can_complete(known.leases, known.inventory, hold):
                facts.append(HoldBroken(at_ms=now_ms, owner=hold.owner, reason="a device of it was lost"))
                facts += reprieve(known, hold, now_ms, "the lease it was to make room for needs other devices now")
    return facts


def give_up(known: Known, hold: Hold, now_ms: int, reason: str, taken_over: Collection[str] = ()) -> list[Fact]:
    """End a hold and reprieve its victims, but for those on whose end somebody else counts (`taken_over`)."""
    released = HoldReleased(at_ms=now_ms, owner=hold.owner, reason=reason)
    return [released, *reprieve(known, hold, now_ms, reason, taken_over)]


def give_up_of(known: Known, lease_id: str, now_ms: int, reason: str) -> list[Fact]:
    """End the hold of this lease, if it has one."""
    hold = known.holds.get(lease_id)
    return give_up(known, hold, now_ms, reason) if hold is not None else []


def reprieve(known: Known, hold: Hold, now_ms: int, reason: str, taken_over: Collection[str] = ()) -> list[Fact]:
    """Reprieve the victims that still hold everything. One that has given up a slice, or is unreachable, ends."""
    reprieved: list[Fact] = [
        LeaseReprieved(at_ms=now_ms, lease_id=lease_id, reason=reason)
        for lease_id in hold.victims
        if lease_id not in taken_over and lease_id in known.leases and may_be_reprieved(known.leases[lease_id])
    ]
    return reprieved + resizing.keep(known, hold.shed, now_ms, reason)


def may_be_reprieved(lease: Lease) -> bool:
    """Whether it was preempted, was running as a whole, and has not given up anything yet."""
    if lease.ended or not lease.requeue or lease.end_reason != EndReason.PREEMPTED or not lease.active_ms:
        return False
    return all(
        piece.state is SliceState.PREEMPTING and piece.billing  # what an elastic lease just gained was never confirmed
        for piece in lease.slices
        if piece.lease_epoch == lease.lease_epoch
    )


def expired(known: Known, owner: str, now_ms: int) -> list[Fact]:
    """A hold's time is up. What was reserved for the head of a line is offered to all again."""
    hold = known.holds.get(owner)
    if hold is None or hold.expires_ms > now_ms:
        return []
    return give_up(known, hold, now_ms, "its time is up")


def in_the_way(known: Known, lease: Lease, *, entitled: bool) -> list[Hold]:
    """Holds that must give way to this request: reservations for later requests and, where it is entitled, all holds of
    borrowers.
    """
    found = []
    for hold in known.holds.values():
        if hold.owner == lease.lease_id:
            continue
        other = known.leases[hold.owner]
        if hold.kind is HoldKind.RESERVATION:
            if entitled or lease.request.priority > other.request.priority:
                found.append(hold)
        elif entitled and not is_entitled(known, other):
            found.append(hold)
    return found


DECIDES = Decides(due={Due.HOLD: expired})

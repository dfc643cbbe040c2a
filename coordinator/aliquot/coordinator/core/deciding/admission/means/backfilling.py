"""Backfill: run on devices that are reserved for somebody, and be gone before their owner can start."""

from __future__ import annotations

from aliquot.coordinator.core.books.holds import Hold, HoldKind
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding.admission.means.opening import with_open
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, suspended
from aliquot.coordinator.core.values.types import Demand, Placement, RequestSpec


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """A look at all reservations, which are few, and one trial placement where their devices have room."""
    lease = waiting.lease
    placement = backfill(
        known,
        lease.request,
        waiting.demand,
        waiting.now_ms,
        lease_id=lease.lease_id,
        preempted_at_ms=lease.preempted_at_ms,
    )
    return waiting.grant(placement) if placement is not None else Attempt([])


def ends_before(request: RequestSpec, hold: Hold, now_ms: int) -> bool:
    """Whether it will have ended before the owner of what is reserved can start."""
    ends_ms = now_ms + request.time_limit_ms + request.grace_ms
    return hold.kind is HoldKind.RESERVATION and request.time_limit_ms > 0 and ends_ms <= hold.start_ms


def _has_room(known: Known, hold: Hold, demand: Demand) -> bool:
    """Whether one slice of a demand would find room on a device of a hold, by size alone."""
    records = (known.inventory.device_record(uuid) for uuid in hold.device_uuids if known.inventory.has_device(uuid))
    return any(device.works and device.has_room(*device.device_class.size_of(demand)) for device in records)


def backfill(
    known: Known,
    request: RequestSpec,
    demand: Demand,
    now_ms: int,
    *,
    lease_id: str,
    preempted_at_ms: tuple[int, ...] = (),
) -> Placement | None:
    """A place on reserved devices for a lease that will have ended before their owner can start."""
    later = [hold for hold in known.holds.values() if hold.owner != lease_id and ends_before(request, hold, now_ms)]
    if not any(_has_room(known, hold, demand) for hold in later):
        return None  # without what is kept it does not fit, and too little of that is free yet
    placement = with_open(known, later, demand)
    if placement is None or suspended(known, request, now_ms) is not None:
        return None
    chain = chain_of(known, request)
    if forbidden(known, request, chain, placement, now_ms, preempted_at_ms) is not None:
        return None
    return placement

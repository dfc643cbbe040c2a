"""What a waiting request may expect: who is ahead of it and why, who would end for it, and when it could start."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aliquot.coordinator.core.books.holds import HoldKind
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.books.maintenance import shown
from aliquot.coordinator.core.books.tenancy.limits import MILLIONTHS
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.deciding.admission.means.order import PREEMPT, RESERVE, foresee
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen
from aliquot.coordinator.core.deciding.admission.means.yielding import may_yield
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.memory import Outlook
from aliquot.coordinator.core.queueing.order import BILLIONTHS, fair_share
from aliquot.coordinator.core.queueing.slowdown import slack_ms, yields_ms
from aliquot.coordinator.core.rules.granting import guarantee_scale, is_entitled, whole_pool
from aliquot.coordinator.core.rules.preemption.leaving import gone_by, take_off
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS, is_protected
from aliquot.coordinator.core.values.types import Demand

OUTLOOK_MS = 2_000
"""Equal requests get the same answer for so long: looking ahead takes milliseconds of the writer's time."""
OUTLOOKS_MAX = 1_024
NODES_MAX = 64
"""Nodes checked for room without borrowers, those with most room first..."""
SLICES_MAX = 400
"""...and no more once so many slices were checked: together a few milliseconds."""


def look_ahead(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Outlook:
    """The outlook of a request that does not fit, and notes on it."""
    hold = known.holds.get(lease.lease_id)
    if hold is not None and hold.kind is HoldKind.PREEMPTION:
        left_s = max(0, hold.start_ms - now_ms) // 1000
        ending = "1 lease is" if len(hold.victims) == 1 else f"{len(hold.victims)} leases are"
        note = f"{ending} ending for it, within {left_s} s" if hold.victims else "devices are kept for it"
        return hold.victims, hold.start_ms, (), (note,)
    key = (demand, lease.request.tenant, lease.request.queue, lease.request.priority)
    old = known.memory.outlooks.get(key)
    if old is not None and old[0] <= now_ms < old[0] + OUTLOOK_MS:
        return old[1]
    victims, start_ms, endless = foresee(known, lease, demand, now_ms, PREEMPT, RESERVE) or Foreseen()
    notes = _notes_on(known, lease, demand, victims, now_ms, start_ms=start_ms)
    found = victims, start_ms, endless, notes
    if len(known.memory.outlooks) >= OUTLOOKS_MAX:
        known.memory.outlooks.clear()
    known.memory.outlooks[key] = (now_ms, found)
    return found


def _notes_on(
    known: Known, lease: Lease, demand: Demand, victims: tuple[str, ...], now_ms: int, *, start_ms: int
) -> tuple[str, ...]:
    if victims:
        number = len(victims)
        return (f"{number} {'lease' if number == 1 else 'leases'} would have to end for it",)
    if not is_entitled(known, lease):
        return ()
    node_ids, are_all = _roomiest(known, demand)
    if not _fits_without_borrowers(known, demand, node_ids):
        if are_all:
            return (
                "it would not fit even without everybody who borrows: what guarantees cover is spread over the devices",
            )
        return (f"it would not fit on the {len(node_ids)} nodes with most room, even without everybody who borrows",)
    if start_ms > now_ms:
        return (f"those who borrow are told to end once they have run {known.config.reclaim_min_run_ms // 1000} s",)
    return ()


def _roomiest(known: Known, demand: Demand) -> tuple[list[str], bool]:
    """(nodes that suit a demand, those with most room first, as far as the bounds allow; whether these are all)."""
    found: list[str] = []
    slices = 0
    for node_id in known.engine.roomiest(demand, known.engine.matcher.shapes(demand)):
        if len(found) >= NODES_MAX or slices >= SLICES_MAX:
            return found, False
        found.append(node_id)
        slices += len(known.slice_ids_by_node[node_id])
    return found, True


def _fits_without_borrowers(known: Known, demand: Demand, node_ids: list[str]) -> bool:
    """Whether a demand would fit on some of these nodes without the leases that no guarantee covers."""
    if not node_ids:
        return False
    scale = guarantee_scale(known)
    there = dict.fromkeys(lease_id_of(i) for node_id in node_ids for i in known.slice_ids_by_node[node_id])
    borrowers = {lease_id for lease_id in there if not is_protected(known, known.leases[lease_id], scale)}
    with known.inventory.trial() as inventory:
        take_off(known, inventory, gone_by(known, node_ids, borrowers, NEVER_MS))
        return known.engine.fits(msgspec.structs.replace(demand, node_ids=tuple(node_ids)))


def notes_on_ahead(known: Known, lease: Lease, ahead: Sequence[str], count: int) -> list[str]:
    """Why others of the same queue are ahead."""
    if not count:
        return []
    higher = sum(known.leases[other].request.priority > lease.request.priority for other in ahead)
    earlier = sum(
        known.leases[other].request.priority <= lease.request.priority and known.leases[other].arrival < lease.arrival
        for other in ahead
    )
    why = [f"{higher} of higher priority" if higher else "", f"{earlier} that came earlier" if earlier else ""]
    rest = len(ahead) - higher - earlier
    by_due = known.tenancy.queue_spec(_queue_of(known, lease)).policy is QueuePolicy.SLOWDOWN
    why.append(f"{rest} {'due sooner' if by_due else 'by having waited longer'}" if rest else "")
    of = "" if count == len(ahead) else f" (of the first {len(ahead)})"
    return [f"ahead of it: {', '.join(text for text in why if text)}{of}"]


def notes_on_order(known: Known, lease: Lease) -> list[str]:
    """What decides about its turn."""
    tenancy, request = known.tenancy, lease.request
    name = _queue_of(known, lease)
    spec = tenancy.queue_spec(name)
    policy = spec.policy
    notes = [f"queue {name} orders by {policy}"]
    if policy is QueuePolicy.SLOWDOWN:
        due = shown(lease.created_ms + slack_ms(spec, request))
        hint = "" if request.time_limit_ms else "; with a time limit it would be due sooner"
        notes.append(f"it is due at {due}, and who is due first goes first{hint}")
        until_ms = lease.created_ms + yields_ms(spec, request)
        if may_yield(request.demand) and known.now_ms < until_ms:
            notes.append(
                f"until {shown(until_ms)} it lets larger requests go first that waited longer for their size and run, "
                "where it would break up what they could use"
            )
    if policy is QueuePolicy.FAIR_SHARE:
        capacity = whole_pool(known)
        others = [other for other in known.lines.queues.get(name, {}) if other != request.tenant]
        mine = fair_share(tenancy, tenancy.account("t", request.tenant), capacity, known.now_ms)
        less = sum(fair_share(tenancy, tenancy.account("t", other), capacity, known.now_ms) < mine for other in others)
        among = (
            f"{less} of the {len(others)} other tenants that wait there hold less" if others else "no other waits there"
        )
        part = f"{100 * mine / BILLIONTHS:.1f} % of the pool by weight"
        notes.append(f"tenant {request.tenant} holds, and lately held, {part}; {among}")
    if is_entitled(known, lease):
        scale = guarantee_scale(known)
        kept = "" if scale == MILLIONTHS else f" (of which {scale / 10_000:.1f} % can be kept now)"
        notes.append(f"a guarantee covers it{kept}: whoever borrows must give way")
    return notes


def _queue_of(known: Known, lease: Lease) -> str:
    return known.tenancy.queue_of(lease.request.tenant, lease.request.queue)

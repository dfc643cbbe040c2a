"""Who goes first where a queue orders by slowdown and a small request would break up what a larger one could use.

The order by due moments says who is next, not who suits what has just become free. Where requests of all sizes wait,
an idle device given to a part of one, or an idle node given to a single device, leaves a remainder that only small
requests can use, and those have been served already. So a request for one device or less lets a later one that would
use more of the same node go first: then small requests wait for remainders instead of making them, and large ones find
what is whole. What bounds that is the objective itself, even slowdown: only who has waited longer against its slack
goes first, and nobody lets others go first for more than a small part of its own (`slowdown.yields_ms`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import Head
from aliquot.coordinator.core.queueing.slowdown import slack_ms, yields_ms
from aliquot.coordinator.core.rules.granting import granted, is_entitled, offer, sterner
from aliquot.coordinator.core.values.types import Demand, Placement

TENANTS_MAX = 16
"""Tenants of the queue of whose requests..."""
HEADS_MAX = 64
"""...so many each are looked at: those due next. Most are passed over by a comparison of integers."""
TRIED_MAX = 4
"""Of those that seem to fit, so many are tried, the largest first."""


class Filler(NamedTuple):
    """Who goes first, and where."""

    lease: Lease
    placement: Placement


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """Comparisons of integers with a bounded number of heads, and a placement on one node for `TRIED_MAX` of them."""
    assert waiting.found.placement is not None
    now_ms = waiting.now_ms
    first = goes_first(known, waiting.head, waiting.demand, waiting.found.placement, now_ms)
    if first is None:
        return Attempt([])
    facts = holding.give_up_of(known, first.lease.lease_id, now_ms, "the lease was granted elsewhere")
    fact = granted(first.lease.lease_id, first.lease.lease_epoch + 1, first.placement, now_ms)
    return Attempt([*facts, fact], again=True)


def may_yield(demand: Demand) -> bool:
    """Whether it is for one device, or for a part of one. Larger requests have it hard enough."""
    return demand.count == 1 and demand.gang_size == 1


def goes_first(known: Known, head: Head, demand: Demand, placement: Placement, now_ms: int) -> Filler | None:
    """A later request of the queue that would use more of the node on which this one is about to be placed, and would
    not fit there beside it; None where there is none, or the head has waited long enough. Changes nothing.
    """
    place = known.lines.place_of(head.lease_id)
    if place is None or not may_yield(demand):
        return None
    lease, queue = known.leases[head.lease_id], known.tenancy.queue_spec(place.queue)
    waited_ms = now_ms - lease.created_ms
    if queue.policy is not QueuePolicy.SLOWDOWN or waited_ms >= yields_ms(queue, lease.request):
        return None
    if is_entitled(known, lease):
        return None
    (node_id,), (plans,) = placement.node_ids, placement.members
    taken = {plan.device_uuid: plan.share_milli for plan in plans}
    devices = [d for d in known.inventory.node(node_id).devices if d.works and not d.withheld_for and not d.admits]
    slack = slack_ms(queue, lease.request)
    found: list[tuple[int, Head]] = []
    for other in _due_later(known, place.queue, head):
        asked, request = other.line.demand, known.leases[other.lease_id].request
        if asked.gang_size > 1 or other.line.priority != head.line.priority:
            continue
        others_ms = now_ms - known.leases[other.lease_id].created_ms
        if waited_ms * slack_ms(queue, request) >= others_ms * slack:
            continue  # against its slack, the other has waited for a shorter time
        size = asked.count * devices[0].device_class.size_of(asked)[0] if devices else 0
        if size > sum(taken.values()) and _fits(asked, devices, {}) and not _fits(asked, devices, taken):
            found.append((size, other))
    found.sort(key=lambda each: (-each[0], each[1].rank))
    for _, other in found[:TRIED_MAX]:
        filler = _place(known, other, node_id, now_ms)
        if filler is not None:
            return filler
    return None


def _due_later(known: Known, queue: str, head: Head) -> Iterator[Head]:
    """The first requests of lines that come after this one in its queue: a bounded number."""
    for lines in islice(known.lines.queues[queue].values(), TENANTS_MAX):
        begin = bisect_right(lines.heads, head.rank, key=lambda each: each[0])
        for entry in lines.heads[begin : begin + HEADS_MAX]:
            yield Head(*entry)


def _fits(demand: Demand, devices: list[DeviceRecord], taken: dict[str, int]) -> bool:
    """Whether enough of these devices have the share that it asks for, once so much is taken."""
    free = 0
    for device in devices:
        left = device.share_left_milli - taken.get(device.spec.uuid, 0)
        free += left > 0 and device.device_class.size_of(demand)[0] <= left
    return free >= demand.count


def _place(known: Known, head: Head, node_id: str, now_ms: int) -> Filler | None:
    troubles = known.memory.troubles
    if troubles and troubles.rests(head.lease_id):
        return None
    lease = known.leases[head.lease_id]
    demand = sterner(known, lease.request, head.line.demand, now_ms).avoiding(head.line.avoid)
    if demand.node_ids and node_id not in demand.node_ids:
        return None
    here = msgspec.structs.replace(demand, node_ids=(node_id,))
    found = offer(known, lease.request, here, now_ms, preempted_at_ms=lease.preempted_at_ms)
    return Filler(lease, found.placement) if found.placement is not None else None

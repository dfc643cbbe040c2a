"""One objective for a queue in which small and large requests, short and long ones, wait together: even slowdown.

The slowdown of a request is (its wait + its run) over its run. Who says by a time limit how long it runs is *due* when
it has waited `STRETCH_MAX` times that; whoever is due first goes first. Among requests on one machine that order keeps
the largest slowdown as small as it can be kept (Bender, Chakrabarti and Muthukrishnan, SODA 1998). On many devices
large requests also need devices side by side, which small ones take one by one: so a request becomes due, and is late,
the sooner the more devices it asks for, as far as `large_first` says. What is kept for somebody (backfill holds) and
who is moved for somebody follow the same moment.

Nobody starves: nothing is due later than `SLACK_MAX_MS` after it came, so that only so much can ever go before it.
"""

from __future__ import annotations

from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec
from aliquot.coordinator.core.values.types import Demand, RequestSpec

STRETCH_MAX = 8
"""A request may wait so many times as long as it says it runs before it is due."""

SLACK_MAX_MS = 7 * 86_400_000
"""After which everything is due. Who states no time limit is due then."""

YIELDS_DIVISOR = 16
"""For so small a part of its slack a request lets others go first that suit better what is free: half of its run."""

LARGE_DEVICES = 8
"""A request for so many devices, or more, is as large as any: a whole node in most pools."""


def slack_ms(queue: QueueSpec, request: RequestSpec) -> int:
    """How long after it came a request is due."""
    limit_ms = request.time_limit_ms
    slack = min(limit_ms * STRETCH_MAX, SLACK_MAX_MS) if limit_ms else SLACK_MAX_MS
    return _shortened(slack, queue, request.demand)


def patience_ms(queue: QueueSpec, request: RequestSpec) -> int:
    """How long a request has to wait before others make room for it: at least 1, or 0 where that is never done."""
    if queue.policy is not QueuePolicy.SLOWDOWN or not queue.reserve_after_ms:
        return queue.reserve_after_ms
    return max(1, _shortened(queue.reserve_after_ms, queue, request.demand))


def yields_ms(queue: QueueSpec, request: RequestSpec) -> int:
    """How long after it came a request may let others go first: see `admission.yielding`."""
    return slack_ms(queue, request) // YIELDS_DIVISOR


def _shortened(span_ms: int, queue: QueueSpec, demand: Demand) -> int:
    """By as much as the size of the demand and `large_first` say."""
    more = min(demand.count * demand.gang_size, LARGE_DEVICES) - 1
    if more <= 0:
        return span_ms
    return span_ms * (1000 * (LARGE_DEVICES - 1) - queue.large_first_permille * more) // (1000 * (LARGE_DEVICES - 1))

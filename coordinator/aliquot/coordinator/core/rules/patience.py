"""Whether a request has waited so long that others make room for it."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing.slowdown import patience_ms

EQUALS_MAX = 64
"""Of the requests behind it, so many are looked at."""


def is_late(known: Known, lease: Lease, now_ms: int) -> bool:
    """Whether the queue's patience is over: with this request or, under `slowdown`, with one of its equals behind it.

    There the first of them may have come last, and what is kept for it serves them all.
    """
    queue = known.tenancy.queue_spec(known.tenancy.queue_of(lease.request.tenant, lease.request.queue))
    if _waited(queue, lease, now_ms):
        return True
    place = known.lines.place_of(lease.lease_id)
    if queue.policy is not QueuePolicy.SLOWDOWN or place is None or place.resting:
        return False
    equals = known.lines.queues[place.queue][place.tenant].lines[place.line][:EQUALS_MAX]
    return any(_waited(queue, known.leases[lease_id], now_ms) for _, lease_id in equals)


def _waited(queue: QueueSpec, lease: Lease, now_ms: int) -> bool:
    after_ms = patience_ms(queue, lease.request)
    return bool(after_ms) and now_ms >= lease.created_ms + after_ms

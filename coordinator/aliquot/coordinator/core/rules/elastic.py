"""How many members an elastic lease should have at most just now, by the rules of its queue and of those above it."""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.books.elastic import bounds_of
from aliquot.coordinator.core.books.leases.records import Lease, queue_of
from aliquot.coordinator.core.books.tenancy.scaling import Keep, ScaleRule, in_window
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.use_windows import UseWindows


class Ceiling(NamedTuple):
    """The most members, and the rule that says so; no reason where no rule applies."""

    members: int
    reason: str = ""


def ceiling_of(known: Known, lease: Lease, now_ms: int) -> Ceiling:
    """The lowest of what the rules that apply leave, and the request's own most otherwise."""
    bounds = bounds_of(lease.request)
    found = Ceiling(bounds.most)
    for queue in known.tenancy.path(queue_of(known.tenancy, lease)):
        for number, rule in enumerate(known.tenancy.queue_spec(queue).scaling):
            members = bounds.least if rule.keep is Keep.LEAST else bounds.start
            if members < found.members and _applies(known, lease, queue, rule, now_ms):
                found = Ceiling(members, f"rule {number + 1} of queue {queue}")
    return found


def _applies(known: Known, lease: Lease, queue: str, rule: ScaleRule, now_ms: int) -> bool:
    if not in_window(rule, now_ms):
        return False
    if rule.waiting_at_least and _waiting(known, queue) < rule.waiting_at_least:
        return False
    if rule.busy_below_permille:
        window = known.memory.part(UseWindows, UseWindows).get(lease.lease_id)
        busy = window.lately_permille() if window is not None else None
        return busy is not None and busy < rule.busy_below_permille
    return True


def _waiting(known: Known, queue: str) -> int:
    """How many requests wait in a queue and below it."""
    return sum(
        lines.size
        for name, tenants in known.lines.queues.items()
        if queue in known.tenancy.path(name)
        for lines in tenants.values()
    )

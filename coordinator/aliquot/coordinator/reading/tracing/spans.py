"""What of a lease's trace is over once its durable record has changed. Pure: the two records say all of it.

    lease ── waits ── starts ── runs ── stops ── waits ── ...

A phase is told when it ends, by whichever coordinator leads then: the record has the time at which it began. So a
trace goes on after a fail-over, under the same names, and nothing of it is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, SliceState
from aliquot.coordinator.reading.tracing.names import place_of, span_id_of

_UNHAPPY = frozenset({"FAILED", "OVER_LIMIT", "EXPIRED"})
_GOING = frozenset({SliceState.RELEASING, SliceState.PREEMPTING})


@dataclass(frozen=True, slots=True)
class Span:
    """A phase that is over. Times are the coordinator's, in ms since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty: none."""
    name: str
    start_ms: int
    end_ms: int
    attributes: dict[str, str | int] = field(default_factory=dict)
    problem: str = ""
    """Why it ended badly; empty: it did not."""


def spans(old: Lease | None, new: Lease | None) -> Iterator[Span]:
    """Those that ended with this change."""
    if new is None:
        return
    epoch = new.lease_epoch
    if new.granted_ms and (old is None or new.granted_ms != old.granted_ms):
        yield _phase(new, "lease waits", epoch, new.requeued_ms or new.created_ms, new.granted_ms)
    if new.active_ms and (old is None or new.active_ms != old.active_ms):
        yield _phase(new, "lease starts", epoch, new.granted_ms, new.active_ms)
    if old is None:
        return
    over_ms = new.ended_ms if not old.ended_ms else 0
    back_ms = new.requeued_ms if new.requeues > old.requeues else 0
    if over_ms or back_ms:
        yield from _use_ended(old, new, over_ms or back_ms)
    if over_ms:
        yield _whole(new, over_ms)


def _use_ended(old: Lease, new: Lease, end_ms: int) -> Iterator[Span]:
    if not old.granted_ms or old.state is LeaseState.QUEUED:
        return
    told = [piece.since_ms for piece in old.slices if piece.state in _GOING]
    stopping_ms = min(told, default=end_ms)
    problem = new.end_reason if new.end_reason in _UNHAPPY else ""
    if old.active_ms:
        yield _phase(new, "lease runs", old.lease_epoch, old.active_ms, stopping_ms, problem)
    if told:
        yield _phase(new, "lease stops", old.lease_epoch, stopping_ms, end_ms, problem)


def _phase(lease: Lease, name: str, epoch: int, start_ms: int, end_ms: int, problem: str = "") -> Span:
    place = place_of(lease.lease_id, lease.request.labels)
    nodes = sorted({piece.plan.node_id for piece in lease.current})
    attributes: dict[str, str | int] = {"aliquot.lease_id": lease.lease_id, "aliquot.lease_epoch": epoch}
    if nodes:
        attributes["aliquot.nodes"] = ",".join(nodes[:16])
    return Span(
        place.trace_id,
        span_id_of(lease.lease_id, name, epoch),
        span_id_of(lease.lease_id, "lease"),
        name,
        start_ms,
        max(start_ms, end_ms),
        attributes,
        problem,
    )


def _whole(lease: Lease, end_ms: int) -> Span:
    place = place_of(lease.lease_id, lease.request.labels)
    attributes: dict[str, str | int] = {
        "aliquot.lease_id": lease.lease_id,
        "aliquot.tenant": lease.request.tenant,
        "aliquot.queue": lease.request.queue,
        "aliquot.gpu": lease.request.gpu_text,
        "aliquot.priority": lease.request.priority,
        "aliquot.end_reason": lease.end_reason,
        "aliquot.requeues": lease.requeues,
        "aliquot.preemptions": lease.preemptions,
    }
    return Span(
        place.trace_id,
        span_id_of(lease.lease_id, "lease"),
        place.parent_id,
        "lease",
        lease.created_ms,
        max(lease.created_ms, end_ms),
        attributes,
        lease.end_reason if lease.end_reason in _UNHAPPY else "",
    )

"""What the coordinator measures of itself, for Prometheus.

Only aggregates, whatever the number of devices: per pool and model, per tenant and queue, with a bound on the
labels and the rest summed as "other". Per-device series are the agents'. Sums are read from the View, which keeps
them up to date by differences, so a scrape costs the same for ten devices and for eighty thousand. It runs on
another thread and reads plain integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from aliquot.common.duties import Duties
from aliquot.common.gauges import Histogram, Metric, counter, counters_by, gauge, gauges_by
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.placement.fragmentation import Fragmentation
from aliquot.coordinator.reading.denials import Denials
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.owners import OwnerCounts, outcome_of, preemption_of
from aliquot.coordinator.reading.totals import ClassTotals, QueueTotals
from aliquot.coordinator.reading.tracing.names import place_of
from aliquot.coordinator.reading.view import View

_FAST_S = (0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_SLOW_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
_SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)


_OUR_FAULT = ("INTERNAL", "JOURNAL_UNAVAILABLE", "OVERLOADED")
"""Reasons for which the coordinator is to blame and not who called."""


class Metrics(Follower):
    """What is counted and timed, and sums of the View. The writer reports to it, and it follows what is durable."""

    def __init__(self, view: View, now_ms: Callable[[], int]) -> None:
        """`now_ms` reads the clock."""
        self._view = view
        self.decision = Histogram("aliquot_decision_seconds", "Time to decide one command and apply its facts", _FAST_S)
        self.commit = Histogram("aliquot_commit_seconds", "Time until a group of facts was durable", _FAST_S)
        self.group_facts = Histogram("aliquot_commit_facts", "Facts made durable together", _SIZES)
        self.grant_to_active = Histogram(
            "aliquot_grant_to_active_seconds", "From a grant to all its slices confirmed by their agents", _SLOW_S
        )
        self.guaranteed_start = Histogram(
            "aliquot_guaranteed_start_seconds",
            "From a request that a guarantee covered to all its slices confirmed by their agents",
            _SLOW_S,
        )
        self.queue_wait = Histogram("aliquot_queue_wait_seconds", "From a request to its first grant", _SLOW_S)
        self.gc_pause = Histogram("aliquot_gc_pause_seconds", "Pauses of the garbage collector", _FAST_S)
        self.commit_failures = 0
        self.granted = 0
        self.moved = 0
        self.resized: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.preempted = OwnerCounts()
        self.outcomes = OwnerCounts()
        self.calls: Counter[str] = Counter()
        """Calls with one answer, by method."""
        self.refused: Counter[str] = Counter(dict.fromkeys(_OUR_FAULT, 0))
        """Calls answered with an error, by reason; those that the objectives count from 0 on, because a rise from
        nothing is not seen as one."""
        self.denials = Denials(now_ms)
        """Refusals for who called."""
        self.duties = Duties()
        """What this coordinator has to do, and what of it fails."""
        self.agent_messages: Counter[str] = Counter()
        self.fragmentation: dict[tuple[str, str], Fragmentation] = {}
        """By (pool, model), as last sampled; empty before the first sample."""

    # -- measuring

    def decided(self, took_ns: int) -> None:
        """One command was decided and applied."""
        self.decision.observe(took_ns / 1e9)

    def committed(self, took_ns: int, facts: int) -> None:
        """One group was made durable."""
        self.commit.observe(took_ns / 1e9)
        self.group_facts.observe(facts)

    def commit_failed(self) -> None:
        """One group was not."""
        self.commit_failures += 1

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """A lease has a new durable record."""
        if new is None:
            return
        if new.granted_ms and (old is None or old.granted_ms != new.granted_ms):
            self.granted += 1
            self.preempted.count(new, "PRIORITY", 0)
            self.outcomes.count(new, "FAILED", 0)
            if new.requeues == 0:
                waited_s = (new.granted_ms - new.created_ms) / 1000
                self.queue_wait.observe(waited_s, partial(_whose, new), new.granted_ms)
        if old is not None:
            self.moved += new.moves - old.moves
            if why := preemption_of(old, new):
                self.preempted.count(new, why)
        if new.active_ms and (old is None or old.active_ms != new.active_ms):
            took_s = (new.active_ms - new.granted_ms) / 1000
            self.grant_to_active.observe(took_s, partial(_whose, new), new.active_ms)
            if new.entitled and new.requeues == 0:
                self.guaranteed_start.observe((new.active_ms - new.created_ms) / 1000)
        if new.ended_ms and (old is None or not old.ended_ms):
            self.ended[new.end_reason] += 1
            if outcome := outcome_of(new):
                self.outcomes.count(new, outcome)
        if old is not None and old.shape != new.shape and old.lease_epoch == new.lease_epoch and old.granted_ms:
            self.resized[_change_of_shape(old, new)] += 1

    # -- reporting

    def collect(self) -> Iterator[Metric]:
        """Everything, within a few milliseconds."""
        for measured in (
            self.decision,
            self.commit,
            self.group_facts,
            self.grant_to_active,
            self.guaranteed_start,
            self.queue_wait,
            self.gc_pause,
        ):
            yield measured.collect()
        yield _counter("aliquot_commit_failures", "Groups that could not be made durable", self.commit_failures)
        yield _counter("aliquot_leases_granted", "Grants", self.granted)
        yield _counter("aliquot_leases_moved", "Grants that moved a lease to another place", self.moved)
        for name, documentation, label, counts in (
            ("aliquot_leases_resized", "Elastic leases that changed their shape", "change", self.resized),
            ("aliquot_leases_ended", "Ends of leases", "reason", self.ended),
            ("aliquot_calls", "Calls with one answer", "method", self.calls),
            ("aliquot_requests_refused", "Calls answered with an error", "reason", self.refused),
            ("aliquot_denied", "Calls refused for who made them", "reason", self.denials.by_reason),
            ("aliquot_agent_messages", "Messages from agents", "kind", self.agent_messages),
        ):
            yield counters_by([label], name, documentation, _single(counts))
        yield self.preempted.collect("aliquot_preemptions", "Leases told to give way and to wait again", "reason")
        yield self.outcomes.collect("aliquot_jobs", "What became of what ran in leases that have ended", "outcome")
        totals = self._view.totals
        yield gauge("aliquot_durable_facts", "Number of the last durable fact", value=self._view.seq)
        yield gauge("aliquot_leader_epoch", "The leader epoch", value=self._view.leader_epoch)
        yield gauge("aliquot_queue_depth", "Requests that wait for capacity", value=totals.queued)
        by_state = {state.name: count for state, count in totals.by_lease_state.items()}
        for name, documentation, label, numbers in (
            ("aliquot_nodes", "Nodes by liveness", "state", totals.by_node_state),
            ("aliquot_nodes_maintained", "Nodes that a maintenance window closes", "phase", totals.by_closure),
            ("aliquot_leases", "Leases that are remembered, by state", "state", by_state),
        ):
            yield gauges_by([label], name, documentation, _single(numbers))
        yield from _summed(["pool", "model"], _OF_CLASSES, totals.classes)
        yield from _summed(["pool", "model"], _OF_FRAGMENTS, self.fragmentation)
        yield gauges_by(
            ["pool", "model"],
            "aliquot_fragmentation_ratio",
            "Part of the idle capacity that requests of late can't use",
            [(key, part.ratio) for key, part in list(self.fragmentation.items())],
            max,
        )
        yield from _summed(["tenant", "queue"], _OF_QUEUES, totals.queues)
        yield _waiting_since(totals.queues)


def _change_of_shape(old: Lease, new: Lease) -> str:
    """How an elastic lease changed: it grew, it shrinks, or it was reprieved."""
    if new.slices_made > old.slices_made:
        return "grown"
    before, after = (sum(piece.holds_capacity and not piece.shed for piece in lease.slices) for lease in (old, new))
    return "kept" if after > before else "shrunk"


def _counter(name: str, documentation: str, value: float) -> Metric:
    return counter(name, documentation, value=value)


def _single(values: Mapping[str, float]) -> list[tuple[list[str], float]]:
    """Numbers by the value of one label."""
    return [([key], value) for key, value in list(values.items())]


_OF_CLASSES = (
    ("devices", "aliquot_devices", "Devices of the pool"),
    ("capacity_share_milli", "aliquot_capacity_share_milli", "Thousandths of devices there are"),
    ("leased_share_milli", "aliquot_leased_share_milli", "Thousandths of devices that leases hold"),
    ("capacity_memory_bytes", "aliquot_capacity_memory_bytes", "Device memory that can be leased"),
    ("leased_memory_bytes", "aliquot_leased_memory_bytes", "Device memory that leases hold"),
)
_OF_QUEUES = (
    ("leased_share_milli", "aliquot_tenant_share_milli", "Thousandths of devices held"),
    ("leased_memory_bytes", "aliquot_tenant_memory_bytes", "Device memory held"),
    ("leases", "aliquot_tenant_leases", "Leases that hold something"),
    ("queued", "aliquot_tenant_queued", "Requests that wait"),
)


_OF_FRAGMENTS = (
    ("idle_milli", "aliquot_idle_share_milli", "Thousandths of devices that are idle"),
    (
        "fragmented_milli",
        "aliquot_fragmented_share_milli",
        "What of that the requests of late can't use, on average",
    ),
)


def _summed(
    labels: list[str],
    fields: tuple[tuple[str, str, str], ...],
    totals: Mapping[tuple[str, str], ClassTotals | QueueTotals | Fragmentation],
) -> Iterator[Metric]:
    """These fields of each."""
    items = list(totals.items())
    for field, name, documentation in fields:
        yield gauges_by(labels, name, documentation, [(key, getattr(each, field)) for key, each in items])


def _waiting_since(queues: Mapping[tuple[str, str], QueueTotals]) -> Metric:
    waiting = [(key, list(each.waiting.values())) for key, each in list(queues.items())]
    return gauges_by(
        ["tenant", "queue"],
        "aliquot_tenant_waiting_since_seconds",
        "Since 1970: when the request began to wait that has waited longest",
        [(key, min(since_ms) / 1000) for key, since_ms in waiting if since_ms],
        min,
    )


def _whose(lease: Lease) -> dict[str, str]:
    """Takes a digest: made for what is scraped, and not for each lease."""
    trace_id = place_of(lease.lease_id, lease.request.labels).trace_id
    return {"trace_id": trace_id, "lease_id": lease.lease_id}

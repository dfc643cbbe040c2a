"""Replays requests in time: they arrive, wait in line where they don't fit, run, and leave.

The line is first come, first served, with backfilling: whoever fits may go ahead. A request that waits at the head for
long therefore shows what its shape costs under a policy; the coordinator's own queues, quotas and reservations are not
simulated here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.rules.trial import hold, let_go
from aliquot.coordinator.core.values.types import Demand, Placement
from aliquot.plan.replay import capacity_milli, fragmented_percent
from aliquot.plan.traces import TraceRequest

BACKFILL_MAX = 256
"""So many of the line are tried at each departure; equal demands are tried once."""


@dataclass(slots=True)
class Timeline:
    """What became of a request list."""

    placed: int = 0
    impossible: int = 0
    """Would not fit the empty pool."""
    left_waiting: int = 0
    waits_s: list[float] = field(default_factory=list)
    mean_allocated_percent: float = 0.0
    fragmented_percent: float = 0.0
    """Idle capacity that the mix of requests can't use when the last arrives, in % of the idle capacity."""

    def wait_s(self, quantile: float) -> float:
        """A quantile of the waits of what was placed."""
        return self.waits_s[min(int(len(self.waits_s) * quantile), len(self.waits_s) - 1)] if self.waits_s else 0.0


class TimelineRun:
    """One replay on one engine."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[TraceRequest],
        watch: Callable[[int, Demand], None],
        mix: Mapping[Demand, int],
    ) -> None:
        self._engine = engine
        self._requests = sorted(requests, key=lambda request: request.arrival_s)
        self._watch = watch
        self._capacity = max(capacity_milli(engine.inventory), 1)
        self._ends: list[tuple[float, int, Demand, Placement]] = []
        self._line: list[tuple[float, int, Demand, float]] = []
        self._held_milli = 0
        self._area = 0.0
        self._now = self._requests[0].arrival_s if self._requests else 0.0
        self._mix = mix
        self._result = Timeline()

    def run(self, progress: Callable[[int], None] | None = None) -> Timeline:
        """Replay everything; `progress` gets the number of arrivals so far."""
        if not self._requests:
            return self._result
        started = self._now
        last = self._requests[-1].arrival_s
        for number, request in enumerate(self._requests):
            self._until(request.arrival_s)
            self._watch(number, request.demand)
            if not self._engine.possible(request.demand):
                self._result.impossible += 1
            elif not self._place(number, request.demand, request.arrival_s, request.duration_s):
                self._line.append((request.arrival_s, number, request.demand, request.duration_s))
            if progress is not None:
                progress(number + 1)
        self._result.fragmented_percent = fragmented_percent(self._engine, self._mix)
        measured = max(last - started, 1e-9)
        self._result.mean_allocated_percent = 100 * self._area / measured / self._capacity
        while self._ends and self._line:
            self._until(self._ends[0][0])
        self._result.left_waiting = len(self._line)
        self._result.waits_s.sort()
        return self._result

    def _until(self, at_s: float) -> None:
        while self._ends and self._ends[0][0] <= at_s:
            end_s, _, demand, placement = heapq.heappop(self._ends)
            self._pass_time(end_s)
            let_go(self._engine.inventory, demand, placement)
            self._held_milli -= demand.share_in_all
            self._serve_line()
        self._pass_time(at_s)

    def _pass_time(self, at_s: float) -> None:
        self._area += self._held_milli * (at_s - self._now)
        self._now = at_s

    def _place(self, number: int, demand: Demand, since_s: float, duration_s: float) -> bool:
        placement = self._engine.place(demand)
        if placement is None:
            return False
        hold(self._engine.inventory, demand, placement)
        self._held_milli += demand.share_in_all
        if duration_s > 0:
            heapq.heappush(self._ends, (self._now + duration_s, number, demand, placement))
        self._result.placed += 1
        self._result.waits_s.append(self._now - since_s)
        return True

    def _serve_line(self) -> None:
        failed: set[Demand] = set()
        kept: list[tuple[float, int, Demand, float]] = []
        for position, (since_s, number, demand, duration_s) in enumerate(self._line):
            if position >= BACKFILL_MAX:
                kept += self._line[position:]
                break
            if demand in failed or not self._place(number, demand, since_s, duration_s):
                failed.add(demand)
                kept.append((since_s, number, demand, duration_s))
        self._line = kept

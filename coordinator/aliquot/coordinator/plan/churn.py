"""Churn: requests arrive and leave for good, and only large ones wait.

Arrivals are a Poisson stream, life times exponential with mean 1 (the unit of time). A request that does not fit is
lost, except a large one, which waits up to a bound. With reservation, large requests are served by two rules: a node
that a large request leaves goes to the oldest waiting one that fits it, before anybody else; and where one has waited
a while, the cheapest node is emptied by moves, within a budget of moves per life time.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.evacuation import evacuate
from aliquot.coordinator.core.placement.moving import Move, Occupant, hold, let_go
from aliquot.coordinator.core.types import Demand, Placement
from aliquot.coordinator.plan.replay import capacity_milli, demanded_milli


class ChurnRules(NamedTuple):
    """Times are in mean life times."""

    load: float
    """Offered demand in capacities."""
    lifetimes: float = 6.0
    warm_up: float = 2.0
    """Not measured."""
    large_devices: int = 4
    """Members with so many devices may wait."""
    patience: float = 0.5
    """A large request that waited so long is given up."""
    reserve: bool = True
    """Off: large requests are treated like all others."""
    move_after: float = 0.2
    """A node is emptied for who has waited so long."""
    moves_per_lifetime: float = 0.009
    """Budget, as a part of the live leases."""
    moves_burst: float = 24.0
    retry_after: float = 0.005
    """A failed attempt to empty a node is not repeated sooner."""


@dataclass(slots=True)
class ChurnResult:
    """What was measured after the warm-up."""

    allocation: float = 0.0
    """Mean over time, in % of the capacity."""
    moved: int = 0
    moved_per_lifetime: float = 0.0
    """In % of the live leases."""
    asked: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    """Requests by `cpu`, `part`, or number of whole devices."""
    waits: dict[str, list[float]] = field(default_factory=dict)
    """Of those admitted that may wait, sorted."""

    def admitted_percent(self, kind: str) -> float:
        """Of one kind of request; 100 where none was asked for."""
        return 100 * self.admitted.get(kind, 0) / self.asked[kind] if self.asked.get(kind) else 100.0

    def wait(self, kind: str, quantile: float) -> float:
        """A quantile of the waits of one kind; 0 where none was admitted."""
        waits = self.waits.get(kind, [])
        return waits[min(int(len(waits) * quantile), len(waits) - 1)] if waits else 0.0


class _Waiting(NamedTuple):
    since: float
    number: int
    demand: Demand
    life: float


class Churn:
    """One run. Deterministic in its seed."""

    def __init__(self, engine: Engine, demands: Sequence[Demand], rules: ChurnRules, seed: int) -> None:
        self._engine = engine
        self._demands = demands
        self._rules = rules
        self._rng = random.Random(seed)  # noqa: S311 - a reproducible simulation, nothing secret
        self._capacity = capacity_milli(engine.inventory)
        self._now = 0.0
        self._ends: list[tuple[float, int]] = []
        self._live: dict[int, tuple[Demand, Placement]] = {}
        self._on_node: dict[str, set[int]] = defaultdict(set)
        self._waiting: list[_Waiting] = []
        self._held_milli = 0
        self._area = 0.0
        self._tokens = rules.moves_burst / 2
        self._retry_at = 0.0
        self._live_area = 0.0
        self.result = ChurnResult()

    def run(
        self,
        watch: Callable[[int, Demand], None] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> ChurnResult:
        """Run to the end. `watch` sees each arrival first; `progress` the time."""
        rules = self._rules
        mean_milli = sum(map(demanded_milli, self._demands)) / len(self._demands)
        rate = rules.load * self._capacity / mean_milli
        number = 0
        while self._now < rules.lifetimes:
            arrival_at = self._now + self._rng.expovariate(rate)
            while self._ends and self._ends[0][0] <= arrival_at:
                at, ending = heapq.heappop(self._ends)
                self._pass_time(at)
                self._end(ending)
            self._pass_time(arrival_at)
            self._serve_waiting()
            demand = self._rng.choice(self._demands)
            if watch is not None:
                watch(number, demand)
            self._arrive(_Waiting(self._now, number, demand, self._rng.expovariate(1.0)))
            number += 1
            if progress is not None and number % 500 == 0:
                progress(self._now)
        return self._measured()

    def _measured(self) -> ChurnResult:
        result, span = self.result, self._rules.lifetimes - self._rules.warm_up
        result.allocation = 100 * self._area / span / self._capacity
        result.moved_per_lifetime = 100 * result.moved / max(self._live_area, 1.0)
        for waits in result.waits.values():
            waits.sort()
        return result

    @property
    def _measuring(self) -> bool:
        return self._now > self._rules.warm_up

    def _pass_time(self, to: float) -> None:
        measured = to - max(self._now, self._rules.warm_up)
        if measured > 0:
            self._area += self._held_milli * measured
            self._live_area += len(self._live) * measured
        budget = (to - self._now) * self._rules.moves_per_lifetime * len(self._live)
        self._tokens = min(self._rules.moves_burst, self._tokens + budget)
        self._now = to

    # -- requests --------------------------------------------------------------------------------------------------

    def _arrive(self, request: _Waiting) -> None:
        if self._counts(request):
            kind = _kind(request.demand)
            self.result.asked[kind] = self.result.asked.get(kind, 0) + 1
        waits = self._rules.reserve and self._is_large(request.demand)
        queued = waits and bool(self._waiting)
        if (queued or not self._admit(request)) and waits:
            self._waiting.append(request)

    def _counts(self, request: _Waiting) -> bool:
        """Is it measured? Not who came during the warm-up, or so late that the run may end before it is served."""
        return self._rules.warm_up < request.since < self._rules.lifetimes - self._rules.patience

    def _is_large(self, demand: Demand) -> bool:
        return demand.count >= self._rules.large_devices

    def _admit(self, request: _Waiting, node_id: str = "") -> bool:
        """Place a request now, on one node if named; False if it does not fit."""
        demand = request.demand
        asked = msgspec.structs.replace(demand, node_ids=(node_id,)) if node_id else demand
        placement = self._engine.place(asked, arrival=request.number)
        if placement is None:
            return False
        hold(self._engine.inventory, demand, placement)
        self._held_milli += demanded_milli(demand)
        self._live[request.number] = demand, placement
        for held_on in placement.node_ids:
            self._on_node[held_on].add(request.number)
        heapq.heappush(self._ends, (self._now + request.life, request.number))
        if self._counts(request):
            kind = _kind(demand)
            self.result.admitted[kind] = self.result.admitted.get(kind, 0) + 1
            if self._is_large(demand):
                self.result.waits.setdefault(kind, []).append(self._now - request.since)
        return True

    def _end(self, number: int) -> None:
        demand, placement = self._live.pop(number)
        let_go(self._engine.inventory, demand, placement)
        self._held_milli -= demanded_milli(demand)
        for node_id in placement.node_ids:
            self._on_node[node_id].discard(number)
        if self._waiting and self._is_large(demand):
            self._hand_over(placement.node_ids[0])

    # -- large requests --------------------------------------------------------------------------------------------

    def _hand_over(self, node_id: str) -> None:
        """A node that a large request left goes to the oldest waiting one that fits it."""
        for request in self._waiting:
            if self._admit(request, node_id):
                self._waiting.remove(request)
                return

    def _serve_waiting(self) -> None:
        """Give up who waited too long; empty a node for the oldest of each shape that has waited long enough."""
        rules = self._rules
        while self._waiting and self._now - self._waiting[0].since > rules.patience:
            self._waiting.pop(0)
        if not self._waiting or self._now < self._retry_at:
            return
        tried: set[Demand] = set()
        for request in self._waiting:
            if self._now - request.since < rules.move_after:
                break
            if request.demand in tried:
                continue
            tried.add(request.demand)
            if self._make_room(request):
                self._waiting.remove(request)
                return
        if tried:
            self._retry_at = self._now + rules.retry_after

    def _make_room(self, request: _Waiting) -> bool:
        occupants = _OnNodes(self._on_node, self._live)
        found = evacuate(self._engine, occupants, request.demand, moves_max=int(self._tokens))
        if found is None:
            return False
        for move in found.moves:
            self._carry_out(move)
        self._tokens -= len(found.moves)
        if self._measuring:
            self.result.moved += len(found.moves)
        admitted = self._admit(request)
        assert admitted, "a plan of moves makes room"
        return True

    def _carry_out(self, move: Move) -> None:
        number = int(move.lease_id)
        demand, _ = self._live[number]
        let_go(self._engine.inventory, demand, move.source)
        hold(self._engine.inventory, demand, move.target)
        self._live[number] = demand, move.target
        for node_id in move.source.node_ids:
            self._on_node[node_id].discard(number)
        for node_id in move.target.node_ids:
            self._on_node[node_id].add(number)


class _OnNodes(dict[str, Sequence[Occupant]]):
    """`Occupants` made for the nodes that are looked at, and no others."""

    def __init__(self, on_node: dict[str, set[int]], live: dict[int, tuple[Demand, Placement]]) -> None:
        super().__init__()
        self._on_node = on_node
        self._live = live

    def get(self, node_id: str, default: object = None) -> Sequence[Occupant]:
        """The leases of one node."""
        numbers = sorted(self._on_node.get(node_id, ()))
        return [Occupant(str(number), *self._live[number], movable=True) for number in numbers]


def _kind(demand: Demand) -> str:
    if not demand.count:
        return "cpu"
    return "part" if demand.count == 1 and demand.share_milli not in (0, 1000) else str(demand.count)

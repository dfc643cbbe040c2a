"""Churn: requests come and go for good, and the coordinator's own core decides.

Arrivals are a Poisson stream; lifetimes are exponential, and their mean is the unit of time. Requests for few devices
are asked with `no_queue` and are lost where they don't fit; large ones wait in line up to a bound, and are served by
what serves them in a live pool: freed devices are offered along the line before newcomers see them, room is made by
moving movable leases within the budget of moves, and devices are kept for the head of the line. Nothing of that is
modelled here: the State, its decisions and its facts are the product's.

Requests that need no device can't be leases; they hold their CPU as what other software runs on the nodes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseRequeued
from aliquot.coordinator.core.books.tenancy.specs import DEFAULT_QUEUE, QueuePolicy, QueueSpec
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.rules.trial import hold, let_go
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import Demand, NodeSpec, Placement, RequestSpec
from aliquot.plan.learning import Lessons
from aliquot.plan.replay import capacity_milli
from bench.lib.published import Fgd

T = TypeVar("T")

LIFETIME_MS = 3_600_000
"""The mean lifetime, in the core's clock."""

TENANT = "churn"

SHORT = 0.01
"""Lifetimes below this count as this in slowdowns: a wait of seconds does not matter to what runs for seconds."""


class ChurnRules(NamedTuple):
    """Times are in mean lifetimes."""

    load: float
    """Offered demand in capacities."""
    lifetimes: float = 6.0
    warm_up: float = 2.0
    """Not measured."""
    large_devices: int = 4
    """Requests for so many devices may wait."""
    patience: float = 0.5
    """A large request that waited so long is given up."""
    reserve: bool = True
    """Off: nobody waits, and nobody is moved for somebody."""
    reserve_after: float = 0.2
    """The queue's `reserve_after`: room is made for who has waited so long."""
    everybody_waits: bool = False
    """Nobody is lost, and nobody gives up."""
    movable: bool = True
    limits: float = 0.0
    """Time limits are drawn evenly between a request's lifetime and so many times of it; 0: there are none."""
    queue: QueueSpec = QueueSpec(DEFAULT_QUEUE, policy=QueuePolicy.FIFO)
    """How those that wait are ordered; its `reserve_after` is that of these rules."""


@dataclass(slots=True)
class ChurnResult:
    """What was measured after the warm-up."""

    allocation: float = 0.0
    """Mean over time, in % of the capacity."""
    moved: int = 0
    moved_per_lifetime: float = 0.0
    """In % of the live leases; a preempted one would count too."""
    asked: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    """Requests by `cpu`, `part`, or number of whole devices."""
    waits: dict[str, list[float]] = field(default_factory=dict)
    """Of those admitted that may wait, sorted."""
    slowdowns: dict[str, list[float]] = field(default_factory=dict)
    """Where everybody waits, sorted: (wait + lifetime) / lifetime, but of lifetimes below `SHORT` as if they had that.
    Who still waits at the end counts with the wait so far.
    """

    waiting: int = 0
    """How many still wait at the end."""

    def admitted_percent(self, kind: str) -> float:
        """Of one kind of request; 100 where none was asked for."""
        return 100 * self.admitted.get(kind, 0) / self.asked[kind] if self.asked.get(kind) else 100.0

    def wait(self, kind: str, quantile: float) -> float:
        """A quantile of the waits of one kind; 0 where none was admitted."""
        waits = self.waits.get(kind, [])
        return waits[min(int(len(waits) * quantile), len(waits) - 1)] if waits else 0.0


class _Asked(NamedTuple):
    since: float
    demand: Demand
    life: float
    limit: float
    """As the request says; 0 without limits."""


class Churn:
    """One run. Deterministic in its seed."""

    def __init__(
        self, nodes: Sequence[NodeSpec], policy: str, demands: Sequence[Demand], rules: ChurnRules, seed: int
    ) -> None:
        """The order of `nodes` is their rank."""
        self._rules = rules
        self._demands = demands
        self._rng = random.Random(seed)
        self.decider = Decider(State.fresh(), CoreConfig(policy=policy))
        self.state = self.decider.state
        self._now = 0.0
        self._do(c.StartLeading(1))
        for spec in nodes:
            self._do(c.DeclareNode(msgspec.structs.replace(spec, agentless=True)))
        after_ms = round(rules.reserve_after * LIFETIME_MS)
        queue = msgspec.structs.replace(rules.queue, reserve_after_ms=after_ms)
        self._do(c.Apply(queues=((queue, c.ANY_VERSION),)))
        learner = self.decider.engine.policy
        if isinstance(learner, Fgd):
            learner.expect(demands, self.state.inventory)
        self._lessons = Lessons(learner, self.state.inventory)
        self._capacity = capacity_milli(self.state.inventory)
        self._ends: list[tuple[float, str]] = []
        self._giving_up: list[tuple[float, str]] = []
        self._asked: dict[str, _Asked] = {}
        self._live: dict[str, int] = {}
        self._elsewhere: dict[str, tuple[Demand, Placement]] = {}
        self._held_milli = 0
        self._area = 0.0
        self._live_area = 0.0
        self.result = ChurnResult()

    @property
    def now_ms(self) -> int:
        """The core's time."""
        return 1_000_000 + int(self._now * LIFETIME_MS)

    def run(self, progress: Callable[[float], None] | None = None) -> ChurnResult:
        """Run to the end."""
        rules = self._rules
        mean_milli = sum(demand.share_in_all for demand in self._demands) / len(self._demands)
        rate = rules.load * self._capacity / mean_milli
        number = 0
        while self._now < rules.lifetimes:
            arrival_at = self._now + self._rng.expovariate(rate)
            self._pass_until(arrival_at)
            demand = self._rng.choice(self._demands)
            table = self._lessons.note(demand)
            if table is not None:
                self._do(c.LearnPrices(table))
            life = self._rng.expovariate(1.0)
            limit = life * self._rng.uniform(1.0, rules.limits) if rules.limits else 0.0
            self._arrive(f"r-{number:08d}", _Asked(self._now, demand, life, limit))
            number += 1
            if progress is not None and number % 500 == 0:
                progress(self._now)
        result, span = self.result, rules.lifetimes - rules.warm_up
        result.allocation = 100 * self._area / span / self._capacity
        result.moved_per_lifetime = 100 * result.moved / max(self._live_area, 1.0)
        result.waiting = len(self._asked)
        for asked in self._asked.values():
            if rules.everybody_waits and self._counts(asked):
                self._note_slowdown(asked)
        for values in (*result.waits.values(), *result.slowdowns.values()):
            values.sort()
        return result

    # -- time ------------------------------------------------------------------------------------------------------

    def _pass_until(self, until: float) -> None:
        """Let end what ends, and give up who has waited too long, in order."""
        while True:
            ends = self._ends[0][0] if self._ends else until
            given_up = self._giving_up[0][0] if self._giving_up else until
            at = min(ends, given_up)
            if at >= until:
                break
            self._pass_time(at)
            if ends <= given_up:
                self._end(heapq.heappop(self._ends)[1])
            else:
                self._give_up(heapq.heappop(self._giving_up)[1])
        self._pass_time(until)

    def _pass_time(self, to: float) -> None:
        measured = to - max(self._now, self._rules.warm_up)
        if measured > 0:
            self._area += self._held_milli * measured
            self._live_area += len(self._live) * measured
        self._now = to
        due_ms = self.decider.next_due_ms(self.now_ms)
        while due_ms is not None and due_ms <= self.now_ms:
            if not self._do(c.Tick()).outcome.more:
                break
        self._admit()

    # -- requests --------------------------------------------------------------------------------------------------

    def _arrive(self, request_id: str, asked: _Asked) -> None:
        if self._counts(asked):
            kind = _kind(asked.demand)
            self.result.asked[kind] = self.result.asked.get(kind, 0) + 1
        if not asked.demand.count:
            self._hold_elsewhere(request_id, asked)
            return
        self._asked[request_id] = asked
        rules = self._rules
        waits = rules.everybody_waits or (rules.reserve and asked.demand.count >= rules.large_devices)
        limit_ms = round(asked.limit * LIFETIME_MS) + 1000 if rules.limits else 0
        request = RequestSpec(asked.demand, TENANT, movable=rules.movable, ttl_ms=0, time_limit_ms=limit_ms, grace_ms=0)
        try:
            self._do(c.Allocate(request_id, request, no_queue=not waits))
        except DomainError:
            del self._asked[request_id]  # lost: it would not wait
            return
        if waits and not rules.everybody_waits and request_id in self._asked:
            heapq.heappush(self._giving_up, (asked.since + self._rules.patience, request_id))
        self._admit()

    def _hold_elsewhere(self, request_id: str, asked: _Asked) -> None:
        placement = self.decider.engine.place(asked.demand)
        if placement is None:
            return
        hold(self.state.inventory, asked.demand, placement)
        self._elsewhere[request_id] = asked.demand, placement
        self._count_admitted(asked)
        heapq.heappush(self._ends, (self._now + asked.life, request_id))

    def _end(self, request_id: str) -> None:
        elsewhere = self._elsewhere.pop(request_id, None)
        if elsewhere is not None:
            let_go(self.state.inventory, *elsewhere)
            self.state.free_capacity()
        else:
            self._held_milli -= self._live.pop(request_id)
            self._do(c.Release(request_id))
        self._admit()

    def _give_up(self, request_id: str) -> None:
        if self._asked.pop(request_id, None) is not None:
            self._do(c.Release(request_id))
            self._admit()

    def _counts(self, asked: _Asked) -> bool:
        """Is it measured? Not who came during the warm-up, or so late that the run may end before it is served."""
        return self._rules.warm_up < asked.since < self._rules.lifetimes - self._rules.patience

    def _count_admitted(self, asked: _Asked) -> None:
        if self._counts(asked):
            kind = _kind(asked.demand)
            self.result.admitted[kind] = self.result.admitted.get(kind, 0) + 1
            if self._rules.everybody_waits and asked.demand.count:
                self._note_slowdown(asked)
            if asked.demand.count >= self._rules.large_devices:
                self.result.waits.setdefault(kind, []).append(self._now - asked.since)

    def _note_slowdown(self, asked: _Asked) -> None:
        slowdown = 1 + (self._now - asked.since) / max(asked.life, SHORT)
        self.result.slowdowns.setdefault(_kind(asked.demand), []).append(slowdown)

    # -- the core --------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Offer along the line what is free, as the writer does between commands."""
        while self.decider.wants_admission():
            if not self._do(c.Admit(attempts=256)).outcome.more:
                break

    def _do(self, command: c.Command[T]) -> Decision[T]:
        decision = self.decider.decide(command, self.now_ms)
        self.decider.carry_out(decision, self.now_ms)
        for fact in decision.facts:
            if isinstance(fact, LeaseGranted):
                self._granted(fact.lease_id)
            elif isinstance(fact, LeaseRequeued) and self._now > self._rules.warm_up:
                self.result.moved += 1
        return decision

    def _granted(self, request_id: str) -> None:
        """A first grant; a move's is none."""
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        self._live[request_id] = asked.demand.share_in_all
        self._held_milli += self._live[request_id]
        self._count_admitted(asked)
        heapq.heappush(self._ends, (self._now + asked.life, request_id))


def _kind(demand: Demand) -> str:
    if not demand.count:
        return "cpu"
    return "part" if demand.count == 1 and demand.share_milli not in (0, 1000) else str(demand.count)

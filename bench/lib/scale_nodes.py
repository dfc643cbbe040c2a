"""Nodes that come when they are missed, against a fixed number and against threshold rules, on the public lists.

Part of `scale.py`. Every list is replayed through the real core in simulated time, three times over:

    supply    the pool's own, by the rules that hold where nothing else is declared: room for 93 % of what is asked
               for next, 10 % kept free by ordering ahead
    fixed      the least number of nodes, there from beginning to end, with which the 95th percentile of a list's waits
               is no longer than the supply's; found by halving
    threshold  rules of the HPA kind: every 30 s as many nodes as make what is asked for (held and waiting) a part of
               what there is; down after a time in which less was wanted, and empty nodes only. Six parts and three
               times are tried; the best is the cheapest of those with the shortest 95th percentile of waits

A node has 8 devices and takes leases 10 minutes after its order; it is paid from its order on, and two nodes are there
in any case. A tenth of the jobs are of a tenant with a guarantee of one node. Jobs that are still waiting at the last
submission count with the wait that they have had by then. Fields:

    node_hours_saved         1 - node-hours of the supply over those of the fixed number, all lists together
    p95_wait_ratio           95th percentile of the waits of all lists over that of the fixed number (1 s at least)
    node_hours_ratio         node-hours of the supply over those of the best threshold rule
    mean_wait_ratio          mean wait over that of the best threshold rule
    p95_wait_ratio_rules     95th percentile of waits over that of the best threshold rule (1 s at least)
    p95_wait_s               of the supply
    best_rule                which one that is: per cent, minutes
    guarantees_missed        moments at which a guarantee could not be kept whole, and requests that a guarantee covered
                             and that were not granted within 60 s
    limit_exceeded           moments at which there were more nodes than the limit
    reversals_per_node_day   how often a node changed from coming to going, or back: the most for one node and day
    reaction_s               from a step in demand to the order, of 24 steps at different times: the longest

`--curve` prints the rows of the table in docs/supply.md instead, and `--picture FILE` draws them.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import importlib
import json
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseReleasing, LeaseRequeued
from aliquot.coordinator.core.books.supply import (
    NodeOrdered,
    NodeShape,
    Order,
    OrderChanged,
    SupplyPolicy,
    SupplySpec,
    Way,
)
from aliquot.coordinator.core.books.tenancy.limits import MILLIONTHS
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.rules.granting import guarantee_scale
from aliquot.coordinator.core.values.types import Demand, RequestSpec
from bench.lib.driving import Core, build_node, percentile
from bench.lib.philly import NODE_DEVICES, read_jobs

BASE = 2
LEAD_MS = 10 * 60_000
TARGET_MS = 5 * 60_000
THRESHOLD_MS = 30_000
RULES = tuple((percent, minutes) for percent in (90, 85, 80, 75, 70, 60) for minutes in (5, 15, 60))
"""What is asked for is to be so many per cent of what there is; down after so many minutes."""
DEFAULT = (930, 100)
"""What a declaration leaves out, in thousandths: what is to be ready for, and what is kept free."""
KNOBS = ((0, 100), (850, 50), DEFAULT, (970, 150))
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JOBS_MAX = 1_500
DAYS_MAX = 10
LARGEST = 4 * NODE_DEVICES
CLUSTERS = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a list."""

    name: str
    submit_ms: int
    duration_ms: int
    demand: Demand
    tenant: str

    @property
    def milli(self) -> int:
        """What it holds, in thousandths of devices."""
        return self.demand.count * self.demand.share_milli * self.demand.gang_size


@dataclass(slots=True)
class Outcome:
    """What became of one replay."""

    node_ms: int = 0
    waits_s: list[float] = field(default_factory=list)
    missed: int = 0
    exceeded: int = 0
    reversals: int = 0
    reactions_s: list[float] = field(default_factory=list)
    nodes_most: int = 0

    @property
    def p95_s(self) -> float:
        """The 95th percentile of waits."""
        return percentile(self.waits_s, 0.95)

    @property
    def mean_s(self) -> float:
        """The mean of waits."""
        return sum(self.waits_s) / max(1, len(self.waits_s))

    def add(self, other: Outcome) -> None:
        """Of several lists together."""
        self.node_ms += other.node_ms
        self.waits_s += other.waits_s
        self.missed += other.missed
        self.exceeded += other.exceeded
        self.reversals = max(self.reversals, other.reversals)


class Replay:
    """One list under one way of having nodes."""

    def __init__(
        self,
        jobs: list[Job],
        *,
        fixed: int = 0,
        supply: tuple[int, int] | None = None,
        threshold: tuple[int, int] | None = None,
    ) -> None:
        config = CoreConfig(confirm_timeout_ms=10**12, retain_ended_ms=1000, policy="binpack")
        self.core = Core(config, start_ms=HOUR_MS)
        self.jobs = {job.name: job for job in jobs}
        self.limit = max(sum(job.milli for job in jobs) // (NODE_DEVICES * 1000) + 1, BASE) - BASE
        self.limit = min(self.limit, 64)
        self.supply, self.threshold = supply, threshold
        self.events: list[tuple[int, int, str, int]] = []
        self.outcome = Outcome()
        self.paid_from_ms: dict[str, int] = {}
        self.waits_from_ms: dict[str, int] = {}
        self.left_ms = {job.name: job.duration_ms for job in jobs}
        self.runs_from_ms: dict[str, int] = {}
        self.run = Counter[str]()
        self.first_ms: dict[str, int] = {}
        self.covered: dict[str, int] = {}
        self.moves: dict[str, list[tuple[int, Way]]] = {}
        self.coming: dict[str, int] = {}
        self.wanted: deque[tuple[int, int]] = deque()
        self.number = 0
        tenant = TenantSpec(name="owner", quota=Quota(guaranteed=Amount(NODE_DEVICES * 1000)))
        for number in range(fixed or BASE):
            self._arrive(f"base-{number}")
        self.core.do(c.Apply(tenants=((tenant, 0),)))
        if supply:
            shape = NodeShape("node", build_node("node", NODE_DEVICES), self.limit, lead_ms=LEAD_MS)
            policy = SupplyPolicy(
                act=True,
                target_wait_ms=TARGET_MS,
                headroom_permille=supply[1],
                spare_permille=supply[1],
                ready_permille=supply[0],
                orders_max=64,
            )
            self.core.do(c.DeclareSupply(SupplySpec((shape,), policy)))

    def go(self) -> Outcome:
        """From the first submission to the last."""
        core = self.core
        first_ms = core.now_ms
        for job in self.jobs.values():
            heapq.heappush(self.events, (first_ms + job.submit_ms, 0, job.name, 0))
        last_ms = first_ms + max(job.submit_ms for job in self.jobs.values())
        if self.threshold:
            heapq.heappush(self.events, (first_ms, 3, "", 0))
        while self.events and core.now_ms <= last_ms:
            at_ms, kind, name, run = self.events[0]
            due_ms = core.decider.next_due_ms(core.now_ms)
            if due_ms is not None and due_ms < at_ms:
                core.now_ms = max(core.now_ms, due_ms)
            else:
                heapq.heappop(self.events)
                core.now_ms = at_ms
                self._happen(kind, name, run)
            core.settle()
            self._follow()
            self._check()
        self._close(last_ms)
        return self.outcome

    def _happen(self, kind: int, name: str, run: int) -> None:
        core = self.core
        if kind == 0:
            job = self.jobs[name]
            held = core.state.tenancy.account("t", job.tenant).share_milli
            waiting = sum(
                self.jobs[other].milli for other in self.waits_from_ms if self.jobs[other].tenant == job.tenant
            )
            if job.tenant == "owner" and held + waiting + job.milli <= NODE_DEVICES * 1000:
                self.covered[name] = core.now_ms
            self.waits_from_ms[name] = core.now_ms
            core.do(c.Allocate(name, RequestSpec(demand=job.demand, tenant=job.tenant, ttl_ms=0, grace_ms=10_000)))
        elif kind == 1 and run == self.run[name]:
            del self.runs_from_ms[name]
            core.do(c.Release(name))
        elif kind == 2:
            self._arrive(name)
        elif kind == 3:
            self._by_threshold()
            heapq.heappush(self.events, (core.now_ms + THRESHOLD_MS, 3, "", 0))

    def _arrive(self, name: str) -> None:
        self.coming.pop(name, None)
        self.paid_from_ms.setdefault(name, self.core.now_ms)
        self.core.do(c.DeclareNode(build_node(name, NODE_DEVICES, agentless=True)))

    def _leave(self, name: str) -> None:
        self.outcome.node_ms += self.core.now_ms - self.paid_from_ms.pop(name)

    def _follow(self) -> None:
        core, now_ms = self.core, self.core.now_ms
        for fact in core.take_facts():
            if isinstance(fact, LeaseGranted):
                name = fact.lease_id
                self.run[name] += 1
                self.runs_from_ms[name] = now_ms
                waited_ms = now_ms - self.waits_from_ms.pop(name)
                if name not in self.first_ms:
                    self.first_ms[name] = now_ms
                    self.outcome.waits_s.append(waited_ms / 1000)
                    if name in self.covered and waited_ms > 60_000:
                        self.outcome.missed += 1
                heapq.heappush(self.events, (now_ms + self.left_ms[name], 1, name, self.run[name]))
            elif isinstance(fact, (LeaseReleasing, LeaseRequeued)):
                name = fact.lease_id
                if name in self.runs_from_ms and (isinstance(fact, LeaseRequeued) or fact.requeue):
                    self.left_ms[name] = max(1_000, self.left_ms[name] - (now_ms - self.runs_from_ms.pop(name)))
                    self.run[name] += 1
                    self.waits_from_ms[name] = now_ms
            elif isinstance(fact, NodeOrdered):
                self._ordered(fact.order)
            elif isinstance(fact, OrderChanged) and fact.order.way is Way.REMOVE and not fact.order.open:
                self._leave(fact.order.node_name)
        if self.supply:
            for order in core.do(c.TakeOrders("provider", orders_max=64)).outcome:
                core.do(c.ReportOrder(order.number, "provider", accepted=True))
                if order.way is Way.ADD:
                    heapq.heappush(self.events, (now_ms + LEAD_MS, 2, order.node_name, 0))

    def _ordered(self, order: Order) -> None:
        now_ms = self.core.now_ms
        self.moves.setdefault(order.node_name, []).append((now_ms, order.way))
        if order.way is Way.ADD:
            self.paid_from_ms[order.node_name] = now_ms
            for name, since_ms in self.waits_from_ms.items():
                if name in order.why:
                    self.outcome.reactions_s.append((now_ms - since_ms) / 1000)

    def _by_threshold(self) -> None:
        """As many nodes as make what is asked for a part of what there is."""
        assert self.threshold is not None
        core, now_ms = self.core, self.core.now_ms
        percent, minutes = self.threshold
        held = core.state.tenancy.account("q", "root").share_milli
        waiting = sum(self.jobs[name].milli for name in self.waits_from_ms)
        wanted = -(-(held + waiting) // (NODE_DEVICES * 10 * percent))
        wanted = min(max(wanted, BASE), self.limit + BASE)
        self.wanted.append((now_ms, wanted))
        while self.wanted[0][0] < now_ms - minutes * 60_000:
            self.wanted.popleft()
        most = max(number for _, number in self.wanted)
        there = len(core.state.nodes) + len(self.coming)
        for _ in range(wanted - there):
            self.number += 1
            name = f"more-{self.number}"
            self.coming[name] = now_ms
            self.paid_from_ms[name] = now_ms
            heapq.heappush(self.events, (now_ms + LEAD_MS, 2, name, 0))
        spare = len(core.state.nodes) - most
        for node_id in [node_id for node_id in core.state.nodes if node_id.startswith("more-")]:
            if spare > 0 and not core.state.slice_ids_by_node[node_id]:
                core.do(c.RemoveNode(node_id))
                self._leave(node_id)
                spare -= 1

    def _check(self) -> None:
        if self.supply:
            if guarantee_scale(self.core.decider.known) < MILLIONTHS:
                self.outcome.missed += 1
            there = len(self.core.state.nodes) - BASE
            self.outcome.exceeded += there > self.limit
        self.outcome.nodes_most = max(self.outcome.nodes_most, len(self.core.state.nodes))

    def _close(self, last_ms: int) -> None:
        found = self.outcome
        found.node_ms += sum(max(0, last_ms - since_ms) for since_ms in self.paid_from_ms.values())
        found.waits_s += [
            (last_ms - since_ms) / 1000 for name, since_ms in self.waits_from_ms.items() if name not in self.first_ms
        ]
        for moves in self.moves.values():
            turns = [at_ms for (_, way), (at_ms, other) in pairwise(moves) if way is not other]
            in_a_day = [sum(at_ms - DAY_MS < other <= at_ms for other in turns) for at_ms in turns]
            found.reversals = max(found.reversals, *in_a_day, 0)


def lists(traces: Path) -> dict[str, list[Job]]:
    """The lists that are replayed: virtual clusters of Philly's, each by itself, and the pods of openb's dense part."""
    found: dict[str, list[Job]] = {}
    with (traces / "philly-derived" / "elasticflow_philly_103959.csv").open(newline="") as file:
        rows = [
            (int(row["submit_time"]), int(row["num_gpu"]), int(row["duration"]), 1000) for row in csv.DictReader(file)
        ]
    found["philly 103959"] = _jobs(rows)
    by_cluster: dict[str, list[tuple[int, int, int, int]]] = {}
    for job in read_jobs(traces / "philly-derived"):
        row = (job.submit_ms // 1000, job.devices, job.duration_ms // 1000, 1000)
        by_cluster.setdefault(job.tenant, []).append(row)
    dense = {name: _jobs(rows) for name, rows in by_cluster.items()}
    for name in sorted(dense, key=lambda name: (-len(dense[name]), name))[:CLUSTERS]:
        found[f"philly {name}"] = dense[name]
    with (traces / "openb" / "openb_pod_list_default.csv").open(newline="") as file:
        pods = [row for row in csv.DictReader(file) if row["num_gpu"] != "0" and row["deletion_time"]]
    rows = [
        (
            int(float(pod["creation_time"])),
            int(pod["num_gpu"]),
            int(float(pod["deletion_time"])) - int(float(pod["creation_time"])),
            int(pod["gpu_milli"]),
        )
        for pod in pods
    ]
    rows = [row for row in rows if row[0] >= 115 * 86_400 and row[2] > 0]
    found["openb"] = _jobs(rows)
    return found


def _jobs(rows: list[tuple[int, int, int, int]]) -> list[Job]:
    """The first jobs of (submission in s, devices, duration in s, thousandths of each device)."""
    rows = sorted(row for row in rows if 0 < row[1] <= LARGEST)[:JOBS_MAX]
    start_s = rows[0][0]
    rows = [row for row in rows if row[0] < start_s + DAYS_MAX * 86_400]
    jobs = []
    for number, (submit_s, devices, duration_s, milli) in enumerate(rows):
        width = next(width for width in range(min(devices, NODE_DEVICES), 0, -1) if devices % width == 0)
        demand = Demand(count=width, share_milli=milli, gang_size=devices // width)
        tenant = "owner" if number % 10 == 0 else "others"
        jobs.append(Job(f"job-{number:05d}", (submit_s - start_s) * 1000, max(1, duration_s) * 1000, demand, tenant))
    return jobs


def like(jobs: list[Job], planned: Outcome) -> Outcome:
    """The least fixed number of nodes with which waits are no longer than the supply's."""
    low, high = BASE, planned.nodes_most + 1
    best: Outcome | None = None
    while low < high or best is None:
        middle = (low + high) // 2
        found = Replay(jobs, fixed=middle).go()
        if found.p95_s <= planned.p95_s:
            best, high = found, middle
        elif low == high:
            low, high = low + 1, high * 2  # even the most that the supply had would not do
        else:
            low = middle + 1
    return best


def step_s() -> float:
    """From a step in demand to the order: the longest of 24, at different times between two looks."""
    slowest = 0.0
    for number in range(24):
        before = [(0, 1, 600, 1000)]
        step = [(4_000 + 7 * number, NODE_DEVICES, 3_600, 1000)] * 6
        replay = Replay(_jobs(before + step + [(9_000, 1, 60, 1000)]), supply=DEFAULT)
        slowest = max(slowest, min(replay.go().reactions_s, default=0.0))
    return slowest


class Row(NamedTuple):
    """A way of having nodes, and what it comes to on all lists."""

    way: str
    hours: int
    mean_s: float
    p95_s: float
    waiting: int


def rules(found: dict[str, list[Job]]) -> dict[tuple[int, int], Outcome]:
    """All threshold rules."""
    outcomes = {rule: Outcome() for rule in RULES}
    for rule, outcome in outcomes.items():
        for jobs in found.values():
            outcome.add(Replay(jobs, threshold=rule).go())
    return outcomes


def best_of(outcomes: dict[tuple[int, int], Outcome]) -> tuple[int, int]:
    """The cheapest of those with the shortest 95th percentile of waits."""
    return min(outcomes, key=lambda rule: (outcomes[rule].p95_s, outcomes[rule].node_ms))


def row(way: str, outcome: Outcome) -> Row:
    """For the table."""
    waiting = sum(wait_s > 1 for wait_s in outcome.waits_s)
    return Row(way, round(outcome.node_ms / HOUR_MS), round(outcome.mean_s, 1), outcome.p95_s, waiting)


def curve(traces: Path) -> list[Row]:
    """What waits cost, by rules and by the supply's two knobs."""
    found = lists(traces)
    rows = [row(f"rule {percent} %, {minutes} min", each) for (percent, minutes), each in rules(found).items()]
    for ready, spare in KNOBS:
        outcome = Outcome()
        for jobs in found.values():
            outcome.add(Replay(jobs, supply=(ready, spare)).go())
        rows.append(row(f"supply, ready {ready / 10:g} %, spare {spare / 10:g} %", outcome))
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Node-hours against the mean wait."""
    figure_of = importlib.import_module("matplotlib.figure")
    figure = figure_of.Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for word, label, colour, mark in (
        ("rule", "threshold rules", "#8c8c8c", "o"),
        ("supply", "the supply", "#3b6fb6", "s"),
    ):
        of = [each for each in rows if each.way.startswith(word)]
        axes.scatter([each.hours for each in of], [each.mean_s for each in of], c=colour, marker=mark, label=label)
        for each in of if word == "supply" else ():
            axes.annotate(each.way.removeprefix("supply, "), (each.hours, each.mean_s), (4, 4), fontsize=7,
                          textcoords="offset points")  # fmt: skip
    axes.set_xlabel("node-hours, all lists")
    axes.set_ylabel("mean wait, s")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def run(options: argparse.Namespace) -> dict[str, float | str]:
    """See the module's docstring."""
    found = lists(options.traces)
    ours, fixed = Outcome(), Outcome()
    for name, jobs in found.items():
        planned = Replay(jobs, supply=DEFAULT).go()
        held = like(jobs, planned)
        ours.add(planned)
        fixed.add(held)
        if not options.json:
            said = "  ".join(
                f"{way} {outcome.node_ms / HOUR_MS:.0f} node-hours, p95 wait {outcome.p95_s:.0f} s"
                for way, outcome in (("supply", planned), ("fixed", held))
            )
            print(f"{name:18} {len(jobs):4} jobs  {said}", flush=True)
    by_rule = rules(found)
    best = best_of(by_rule)
    rule = by_rule[best]
    return {
        "node_hours_saved": round(1 - ours.node_ms / fixed.node_ms, 4),
        "p95_wait_ratio": round(max(ours.p95_s, 1.0) / max(fixed.p95_s, 1.0), 4),
        "node_hours_ratio": round(ours.node_ms / rule.node_ms, 4),
        "mean_wait_ratio": round(ours.mean_s / max(rule.mean_s, 1.0), 4),
        "p95_wait_ratio_rules": round(max(ours.p95_s, 1.0) / max(rule.p95_s, 1.0), 4),
        "p95_wait_s": round(ours.p95_s, 1),
        "best_rule": f"{best[0]} %, {best[1]} min",
        "guarantees_missed": ours.missed,
        "limit_exceeded": ours.exceeded,
        "reversals_per_node_day": ours.reversals,
        "reaction_s": round(step_s(), 1),
    }


def main() -> None:
    """This part alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if not options.curve:
        print(json.dumps(run(options)))
        return
    rows = curve(options.traces)
    for each in rows:
        print(f"| {each.way} | {each.hours:,} | {each.mean_s} | {each.p95_s:.0f} | {each.waiting} |", flush=True)
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()

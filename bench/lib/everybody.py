"""Churn in which everybody waits: how slow that makes each size of request, first come first served and by slowdown.

Requests come as a Poisson stream drawn from the list, live for an exponential time whose mean is the unit of time (an
hour of the core's clock), and wait until they are served. Each states a time limit, drawn evenly between its lifetime
and `--limits` times it; 0: none does. Two queues are compared, which have the same patience (`reserve_after` 5 min):

    first-come  policy `fgd`, order `fifo` with backfill and backfill holds; nobody is moved
    slowdown    the policies of `--policies`, order `slowdown` with its default `large_first`; all may be moved

Slowdown is (wait + lifetime) / lifetime, where lifetimes below a hundredth of the mean count as that. Whoever came
after the warm-up counts, with the wait so far if it still waits at the end. Fields, by order, policy and load:

    allocated                    mean over time, in % of the capacity
    slowdown_p50, slowdown_p99   by class: `part` of a device, or number of devices
    asked                        requests that were measured, by class
    moved                        per mean lifetime, in % of the live leases
    waiting                      how many still wait at the end
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.books.tenancy.specs import DEFAULT_QUEUE, QueuePolicy, QueueSpec
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.values.types import NodeSpec
from aliquot.plan.traces import TraceRequest
from bench.lib.churn import Churn, ChurnResult, ChurnRules
from bench.lib.driving import percentile

FIRST_COME = "first-come"
PATIENCE = 1 / 12
"""Of both queues, in mean lifetimes of an hour: the default of five minutes."""


class Run(NamedTuple):
    """One of the runs that are compared."""

    order: str
    policy: str
    load: float

    @property
    def label(self) -> str:
        """Its name in the result."""
        return f"{self.order}/{self.policy}@{self.load}"


class Scene(NamedTuple):
    """What all runs have in common."""

    nodes: list[NodeSpec]
    requests: list[TraceRequest]
    nodes_max: int | None
    lifetimes: float
    limits: float


def run_one(scene: Scene, run: Run, seed: int) -> ChurnResult:
    """One seed of one run."""
    nodes = list(scene.nodes)
    random.Random(seed).shuffle(nodes)
    by_due = run.order != FIRST_COME
    rules = ChurnRules(
        run.load,
        lifetimes=scene.lifetimes,
        reserve_after=PATIENCE,
        everybody_waits=True,
        movable=by_due,
        limits=scene.limits,
        queue=QueueSpec(DEFAULT_QUEUE, policy=QueuePolicy.SLOWDOWN if by_due else QueuePolicy.FIFO),
    )
    demands = [request.demand for request in scene.requests]
    return Churn(nodes[: scene.nodes_max], run.policy, demands, rules, seed).run()


def figures(results: Sequence[ChurnResult]) -> dict[str, Any]:
    """See the module's docstring; over all seeds."""
    kinds = sorted({kind for result in results for kind in result.slowdowns})
    slowdowns = {kind: [s for result in results for s in result.slowdowns.get(kind, [])] for kind in kinds}
    return {
        "allocated": round(statistics.mean(result.allocation for result in results), 2),
        "slowdown_p50": {kind: round(percentile(slowdowns[kind], 0.5), 2) for kind in kinds},
        "slowdown_p99": {kind: round(percentile(slowdowns[kind], 0.99), 2) for kind in kinds},
        "asked": {kind: len(slowdowns[kind]) for kind in kinds},
        "moved": round(statistics.mean(result.moved_per_lifetime for result in results), 2),
        "waiting": round(statistics.mean(result.waiting for result in results), 1),
    }


def report(
    scene: Scene, policies: Sequence[str], loads: Sequence[float], seeds: Sequence[int], jobs: int, console: Console
) -> dict[str, Any]:
    """Run everything; prints a line a run."""
    runs = [
        Run(order, policy, load)
        for load in loads
        for order, policy in [(FIRST_COME, "fgd"), *(("slowdown", policy) for policy in policies)]
    ]
    found: dict[str, Any] = {}
    with Progress(console=console) as progress, ProcessPoolExecutor(jobs, initializer=warm_up) as workers:
        bar = progress.add_task("churning", total=len(runs) * len(seeds))
        pending: dict[Run, list[Future[ChurnResult]]] = {
            run: [workers.submit(run_one, scene, run, seed) for seed in seeds] for run in runs
        }
        for run, futures in pending.items():
            results = []
            for future in futures:
                results.append(future.result())
                progress.advance(bar)
            found[run.label] = figures(results)
            console.print(f"{run.label:24s} {found[run.label]}")
    return found

"""Placement quality: how much of a pool each policy gets allocated, by the protocol of the openb study.

    python bench/placement.py --trace DIR --policies fgd,price --seeds 10 --json
    python bench/placement.py --trace DIR --variant several40
    python bench/placement.py --trace DIR --churn
    python bench/placement.py --trace DIR --everybody --policies price --nodes 250
    python bench/placement.py --mixed openb --policies fgd,bestfit,price
    python bench/placement.py --energy --policies fgd,pwr50,pwr100,pwr200,price --seeds 10

DIR holds `openb_node_list_gpu_node.csv` and `openb_pod_list_default.csv`, or lists of the same columns. The last line
printed is one JSON object: by policy `at_100`, `at_130` (mean allocation in % when 100 and 130 % of the capacity have
arrived), their standard deviations over the seeds `sd_100`, `sd_130`, and `us_per_decision`; with `--mixed` that is the
share, and `memory_at_100` and so on are the memory. With `--churn`, by policy and load: the mean allocation, how many
8-device requests were admitted and how long they waited, and what was moved for them. With `--everybody` nobody is
lost: see `lib/everybody.py`; with `--islands`, what good links cost: `lib/links.py`; with `--energy`, what the pool
draws while it fills: `lib/energy.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.values.types import Demand, NodeSpec
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.nodes import read_nodes
from aliquot.plan.replay import capacity_milli, fill, pool_of
from aliquot.plan.traces import TraceRequest, read_openb_pods

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.lib.churn import Churn, ChurnResult, ChurnRules
from bench.lib.energy import report as report_energy
from bench.lib.everybody import Scene
from bench.lib.everybody import report as report_everybody
from bench.lib.links import report as report_links
from bench.lib.mixed import POOLS, fill_mixed, mixed_pool
from bench.lib.protocol import ARRIVE_MILLI, FIRST_SEED, PERCENTS, watcher
from bench.lib.variants import vary

ARRIVE_MIXED_MILLI = 1320
"""How much arrives in all where cards are mixed."""
NODES = "openb_node_list_gpu_node.csv"
LARGE = 8
"""Devices of the large requests in the churn figures."""


def read_lists(trace: Path, pods_name: str, variant: str) -> tuple[list[NodeSpec], list[TraceRequest]]:
    """The nodes, and the request list or a variant of it."""
    nodes, pods = read_nodes(trace / NODES), read_openb_pods(trace / pods_name)
    return nodes, vary(pods, variant, nodes) if variant else pods


class _Clock:
    """The time that decisions take, without that of lessons, which a pool takes in a process of their own."""

    def __init__(self, watch: Callable[[int, Demand], None] | None) -> None:
        self._watch = watch
        self._lessons_s = 0.0
        self._started = time.perf_counter()

    def watch(self, arrival: int, demand: Demand) -> None:
        """Of each arrival."""
        if self._watch is not None:
            began = time.perf_counter()
            self._watch(arrival, demand)
            self._lessons_s += time.perf_counter() - began

    def deciding_s(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._started - self._lessons_s


class Pass(NamedTuple):
    """One pass of a policy over a list: what was allocated at 100 and 130 %, in %, and how long decisions took."""

    at: dict[str, float]
    decisions: int
    seconds: float


def run(options: argparse.Namespace, policy_name: str, seed: int) -> Pass:
    """The study's protocol: requests arrive in an order drawn by the seed, and none leaves."""
    mixed = bool(options.mixed)
    if mixed:
        nodes, requests = mixed_pool(options.trace.parent, options.mixed)
    else:
        nodes, requests = read_lists(options.trace, options.pods, options.variant)
    random.Random(seed).shuffle(nodes)
    inventory = pool_of(nodes)
    policy = make_policy(policy_name)
    arrive_milli = ARRIVE_MIXED_MILLI if mixed else ARRIVE_MILLI
    demands = [each.demand for each in tuned_arrivals(requests, capacity_milli(inventory), arrive_milli, seed)]
    clock = _Clock(watcher(policy, requests, inventory))
    engine = Engine(inventory, policy)
    at: dict[str, float] = {}
    if mixed:
        curve = fill_mixed(engine, demands, clock.watch)
        seconds = clock.deciding_s()
        for percent in PERCENTS:
            at[f"at_{percent}"], at[f"memory_at_{percent}"] = curve.at(percent)
    else:
        filled = fill(engine, demands, before=clock.watch)
        seconds = clock.deciding_s()
        at = {f"at_{percent}": filled.at(percent) for percent in PERCENTS}
    return Pass(at, len(demands), seconds)


def run_churn(
    lists: tuple[Path, str, str], nodes_max: int | None, policy_name: str, rules: ChurnRules, seed: int
) -> ChurnResult:
    """One run of requests that come and go, decided by the coordinator's core."""
    nodes, pods = read_lists(*lists)
    random.Random(seed).shuffle(nodes)
    return Churn(nodes[:nodes_max], policy_name, [pod.demand for pod in pods], rules, seed).run()


def report(options: argparse.Namespace, names: list[str], console: Console) -> dict[str, dict[str, float]]:
    """What each policy gets allocated: `at_100`, `sd_100` and so on; of mixed cards that is the share, and
    `memory_at_100` and the like are beside it.
    """
    result: dict[str, dict[str, float]] = {}
    with Progress(console=console) as progress, ProcessPoolExecutor(options.jobs, initializer=warm_up) as workers:
        bar = progress.add_task("placing", total=len(names) * options.seeds)
        futures = {
            name: [workers.submit(run, options, name, FIRST_SEED + seed) for seed in range(options.seeds)]
            for name in names
        }
        for name in names:
            passes = []
            for future in futures[name]:
                passes.append(future.result())
                progress.advance(bar)
            figures = result[name] = {}
            for what in passes[0].at:
                values = [each.at[what] for each in passes]
                figures[what] = round(statistics.mean(values), 3)
                figures[what.replace("at_", "sd_")] = round(statistics.stdev(values), 3) if len(values) > 1 else 0.0
            seconds, decisions = sum(each.seconds for each in passes), sum(each.decisions for each in passes)
            figures["us_per_decision"] = round(1e6 * seconds / decisions, 1)
            if not options.json:
                console.print(f"{name:12s} {figures}")
    return result


def report_churn(options: argparse.Namespace, names: list[str], console: Console) -> dict[str, dict[str, float]]:
    """Each policy at each load; `price` also with waiting and moves."""
    result: dict[str, dict[str, float]] = {}
    runs = [
        (name, load, reserve)
        for load in (1.0, 1.1)
        for name in names
        for reserve in (False, True)
        if not reserve or name == "price"
    ]
    with Progress(console=console) as progress, ProcessPoolExecutor(options.jobs, initializer=warm_up) as workers:
        bar = progress.add_task("churning", total=len(runs) * options.seeds)
        futures = {}
        for key in runs:
            name, load, reserve = key
            rules = ChurnRules(load, lifetimes=options.lifetimes, reserve=reserve)
            lists = options.trace, options.pods, options.variant
            futures[key] = [
                workers.submit(run_churn, lists, options.nodes, name, rules, FIRST_SEED + seed)
                for seed in range(options.seeds)
            ]
        for (name, load, reserve), pending in futures.items():
            results = []
            for future in pending:
                results.append(future.result())
                progress.advance(bar)
            large = str(LARGE)
            waits = sorted(wait for r in results for wait in r.waits.get(large, []))
            label = f"{name}{'+reservation' * reserve}@{load}"
            result[label] = {
                "allocation": round(statistics.mean(r.allocation for r in results), 2),
                "sd": round(statistics.stdev(r.allocation for r in results), 2) if len(results) > 1 else 0.0,
                "large_admitted": round(statistics.mean(r.admitted_percent(large) for r in results), 1),
                "wait_p50_lifetimes": round(waits[len(waits) // 2], 3) if waits else 0.0,
                "wait_p99_lifetimes": round(waits[int(len(waits) * 0.99)], 3) if waits else 0.0,
                "moved_percent_per_lifetime": round(statistics.mean(r.moved_per_lifetime for r in results), 2),
            }
            for kind in sorted({kind for r in results for kind in r.asked}):
                percent = statistics.mean(r.admitted_percent(kind) for r in results)
                result[label][f"admitted_{kind}"] = round(percent, 1)
            if not options.json:
                console.print(f"{label:24s} {result[label]}")
    return result


def main() -> None:
    """Parse, run every (policy, seed), print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    traces = os.environ.get("ALIQUOT_TRACES")
    parser.add_argument("--trace", type=Path, default=Path(traces) / "openb" if traces else None)
    parser.add_argument("--pods", default="openb_pod_list_default.csv", help="request list inside the folder")
    parser.add_argument("--variant", default="", help="a variant of the list, such as parts60")
    parser.add_argument("--policies", default="fgd,price")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--churn", action="store_true", help="requests come and go, at load 1.0 and 1.1")
    parser.add_argument("--mixed", choices=POOLS, help="cards of very different memory, requests by share and memory")
    parser.add_argument("--nodes", type=int, help="churn: only so many of the nodes, drawn by the seed")
    parser.add_argument("--islands", type=int, metavar="N", help="what good links cost, where N devices are an island")
    parser.add_argument("--energy", action="store_true", help="watts drawn along the arrivals")
    parser.add_argument("--everybody", action="store_true", help="churn in which all requests wait: slowdown by size")
    parser.add_argument("--loads", default="0.9,1.0,1.1", help="everybody: offered demand in capacities")
    parser.add_argument("--limits", type=float, default=3.0, help="everybody: time limits are up to so many lifetimes")
    parser.add_argument("--lifetimes", type=float, default=6.0, help="length of a churn run; the first 2 are warm-up")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    if options.trace is None:
        print(
            json.dumps({"skipped": "no trace: give --trace DIR, or set ALIQUOT_TRACES to the folder that has openb/"})
        )
        return
    names = [name for name in options.policies.split(",") if name]
    if options.everybody:
        scene = Scene(
            *read_lists(options.trace, options.pods, options.variant), options.nodes, options.lifetimes, options.limits
        )
        loads = [float(load) for load in options.loads.split(",")]
        seeds = [FIRST_SEED + seed for seed in range(options.seeds)]
        print(json.dumps(report_everybody(scene, names, loads, seeds, options.jobs, Console(stderr=True))))
        return
    console = Console(stderr=True)
    if options.islands:
        lists = read_lists(options.trace, options.pods, options.variant)
        result = report_links(options, lists, names, console)
    elif options.energy:
        lists = read_lists(options.trace, options.pods, options.variant)
        print(json.dumps(report_energy(options, lists, names, console)))
        return
    else:
        result = (report_churn if options.churn else report)(options, names, console)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

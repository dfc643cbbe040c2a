"""Placement quality: how much of a pool each policy gets allocated, by the protocol of the openb study.

    python bench/placement.py --trace DIR --policies fgd,price --seeds 10 --json

DIR holds `openb_node_list_gpu_node.csv` and `openb_pod_list_default.csv`, or lists of the same columns. The last line
printed is one JSON object: by policy `at_100`, `at_130` (mean allocation in % when 100 and 130 % of the capacity have
arrived) and their standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.placement import POLICIES, Engine, make_policy
from aliquot.coordinator.core.placement.fragmentation import typical
from aliquot.coordinator.core.placement.mix import mix_type
from aliquot.coordinator.plan.arrivals import tuned_arrivals
from aliquot.coordinator.plan.learning import online
from aliquot.coordinator.plan.replay import Curve, capacity_milli, fill, pool_of
from aliquot.coordinator.plan.traces import read_openb_nodes, read_openb_pods

FIRST_SEED = 42


def run(trace: Path, pods_name: str, policy_name: str, seed: int) -> tuple[Curve, float]:
    """One pass; returns the curve and the seconds it took."""
    nodes = read_openb_nodes(trace / "openb_node_list_gpu_node.csv")
    pods = read_openb_pods(trace / pods_name)
    random.Random(seed).shuffle(nodes)
    inventory = pool_of(nodes)
    policy = make_policy(policy_name)
    demands = [pod.demand for pod in tuned_arrivals(pods, capacity_milli(inventory), 1300, seed)]
    watch = None
    if policy.mix_dependent:
        policy.set_mix(typical(Counter(mix_type(pod.demand) for pod in pods)))
    else:
        watch = online(policy)
    engine = Engine(inventory, policy)
    started = time.perf_counter()
    curve = fill(engine, demands, before=watch)
    return curve, time.perf_counter() - started


def main() -> None:
    """Parse, run every (policy, seed), print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--pods", default="openb_pod_list_default.csv", help="request list inside the folder")
    parser.add_argument("--policies", default=",".join(sorted(POLICIES)))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    names = [name for name in options.policies.split(",") if name]
    console = Console(stderr=True)
    result: dict[str, dict[str, float]] = {}
    with Progress(console=console) as progress, ProcessPoolExecutor(options.jobs) as workers:
        bar = progress.add_task("placing", total=len(names) * options.seeds)
        for name in names:
            futures = [
                workers.submit(run, options.trace, options.pods, name, FIRST_SEED + seed)
                for seed in range(options.seeds)
            ]
            curves = []
            seconds = 0.0
            for future in futures:
                curve, took = future.result()
                curves.append(curve)
                seconds += took
                progress.advance(bar)
            at_100 = [curve.at(100) for curve in curves]
            at_130 = [curve.at(130) for curve in curves]
            result[name] = {
                "at_100": round(statistics.mean(at_100), 3),
                "at_130": round(statistics.mean(at_130), 3),
                "sd_100": round(statistics.stdev(at_100), 3) if len(at_100) > 1 else 0.0,
                "sd_130": round(statistics.stdev(at_130), 3) if len(at_130) > 1 else 0.0,
                "us_per_decision": round(1e6 * seconds / sum(len(c.arrived_milli) for c in curves), 1),
            }
            if not options.json:
                console.print(f"{name:12s} {result[name]}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

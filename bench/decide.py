"""Decision time of a policy, including its application, against a vectorised full scan in the same run.

    python bench/decide.py --devices 6212,80000 --json
    python bench/decide.py --vendors --json
    python bench/decide.py --classes --json

For each pool size and load: requests of the openb mix (from `ALIQUOT_TRACES` if set, else a mix modelled on it) arrive
and leave so that the load stays constant. Each decision is timed together with its application to the inventory and the
scores that earlier departures left to compute. The full scan decides a sample of the same requests and must agree. The
last line printed is one JSON object: by device count `p50_us`, `p99_us` and `ratio_to_full_scan`, each for the worse of
the loads, and `p99_cpu_us`, the same in processor time; and `gang_refused_ms`, the time to refuse a gang that can't fit
1,000 nodes now, or ever, including the reason: the slowest kind of gang, at the median. With `--vendors` each size is
measured a second time, as a pool whose nodes are of four vendors in turn, where half of the shapes of requests are for
one of them (`mixed`), as full as that mix can fill it. With `--classes` each size is measured again with cards of eight
sizes of memory and requests that state theirs (`8 classes`). `batch_ms` is the time to decide and apply `BATCH`
requests one after another with nothing between them, after as many have left: the median over batches.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.placement import Engine, Policy, make_policy
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.rules.trial import hold, let_go
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, DeviceSpec, NodeSpec, Placement
from aliquot.plan.replay import capacity_milli, pool_of
from aliquot.plan.traces import read_openb_pods

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench.lib.scanning import ScanIndex
from bench.lib.teaching import teach

GIB = 1 << 30
ROUND = 1000
"""Decisions per round. The median of the rounds' percentiles is reported, so that other work on the machine spoils only
some rounds."""

NODE_KINDS = (("G2", 8, 96_000), ("T4", 2, 104_000), ("P100", 2, 16_000), ("G3", 8, 128_000), ("V100M16", 4, 32_000))
"""Model, devices and CPU of the node kinds of a pool like openb's."""

LARGE_POOL_KIND = ("G3", 8, 128_000)
"""The kind of node of which a large pool is built."""


def build_nodes(devices: int, kind: tuple[str, int, int] | None = None) -> list[NodeSpec]:
    """A pool of about this many devices, of this kind of node; None: as openb, or of one kind if it is large."""
    nodes: list[NodeSpec] = []
    built = 0
    while built < devices:
        model, width, cpu_milli = kind or (
            NODE_KINDS[len(nodes) % len(NODE_KINDS)] if devices < 20_000 else LARGE_POOL_KIND
        )
        name = f"node-{len(nodes):05d}"
        nodes.append(
            NodeSpec(
                name,
                name,
                tuple(DeviceSpec(f"{name}/{i}", model, 32 * GIB, index=i) for i in range(width)),
                cpu_milli=cpu_milli,
                host_memory_bytes=512 * GIB,
            )
        )
        built += width
    return nodes


VENDORS = (("nvidia", ""), ("amd", "MI300X"), ("intel", "ARC-B60"), ("npu", "910B3"))
"""Whose the nodes of a mixed pool are, in turn, and of what model; empty: as before."""


def mixed_nodes(nodes: list[NodeSpec]) -> list[NodeSpec]:
    """The same nodes, with cards of four vendors in turn."""
    found = []
    for number, node in enumerate(nodes):
        vendor, model = VENDORS[number % len(VENDORS)]
        devices = (replace(device, vendor=vendor, model=model or device.model) for device in node.devices)
        found.append(replace(node, devices=tuple(devices)))
    return found


CLASSES_GIB = (16, 24, 32, 40, 48, 80, 96, 141)
"""Memory of the cards of a pool of many classes, node by node in turn."""


def classed_nodes(nodes: list[NodeSpec]) -> list[NodeSpec]:
    """The same nodes, with cards of eight sizes of memory in turn."""
    found = []
    for number, node in enumerate(nodes):
        memory = CLASSES_GIB[number % len(CLASSES_GIB)] * GIB
        devices = (replace(device, model=f"C{memory // GIB}", memory_total_bytes=memory) for device in node.devices)
        found.append(replace(node, devices=tuple(devices)))
    return found


def classed_demands(demands: list[Demand]) -> list[Demand]:
    """The same requests, every second shape of those for parts with memory of its own: 4, 10, 20 GiB in turn."""
    shapes = sorted({demand for demand in demands if 0 < demand.share_milli < WHOLE_SHARE_MILLI}, key=repr)
    memory = {shape: (0, 4, 0, 10, 0, 20)[number % 6] * GIB for number, shape in enumerate(shapes)}
    return [replace(demand, models=(), memory_bytes=memory.get(demand, 0)) for demand in demands]


def mixed_demands(demands: list[Demand]) -> list[Demand]:
    """The same requests, every second shape of them for one vendor. As many shapes as before: that is what costs."""
    words = ("", "nvidia", "", "amd", "", "intel", "", "npu")
    often = Counter(demand for demand in demands if demand.count)
    # By how often each is asked, so that no vendor's cards are wanted much more than the others'.
    shapes = sorted(often, key=lambda shape: (-often[shape], repr(shape)))
    vendors = {shape: words[number % len(words)] for number, shape in enumerate(shapes)}
    return [replace(demand, vendor=vendors.get(demand, "")) for demand in demands]


def build_demands(rng: random.Random, count: int) -> list[Demand]:
    """Requests drawn from the openb list, or from about as many shapes with about the same weights."""
    traces = os.environ.get("ALIQUOT_TRACES")
    if traces:
        pods = read_openb_pods(Path(traces) / "openb" / "openb_pod_list_default.csv")
        shapes = [pod.demand for pod in pods]
        # Host memory differs for almost every pod and never matters here: it would make every request a different
        # shape.
        shapes = [
            Demand(count=d.count, share_milli=d.share_milli, models=d.models, cpu_milli=d.cpu_milli) for d in shapes
        ]
        return [rng.choice(shapes) for _ in range(count)]
    sizes = (1000, 1000, 1000, 810, 470, 320, 650, 230, 460, 590, 160, 550, 220, 370)
    cpus = (3000, 4000, 6000, 8000, 11_400, 12_000)
    kinds = [Demand(share_milli=size, cpu_milli=cpu) for size in sizes for cpu in cpus]
    kinds += [Demand(count=k, cpu_milli=11_000 * k) for k in (2, 4, 8)] + [Demand(count=0, cpu_milli=c) for c in cpus]
    weights = [1 / (1 + position) for position in range(len(kinds))]
    rng.shuffle(weights)
    return rng.choices(kinds, weights, k=count)


class Load:
    """Keeps a pool at a load: requests arrive, random ones leave."""

    def __init__(self, engine: Engine, rng: random.Random, load: float) -> None:
        self.engine = engine
        self.rng = rng
        self.target = int(capacity_milli(engine.inventory) * load)
        self.held = 0
        self.live: list[tuple[Demand, Placement]] = []
        self.cpu_s = 0.0
        """Processor time of the last arrival."""

    def arrive(self, demand: Demand, arrival: int) -> float:
        """Decide and apply. Returns the seconds this took."""
        worked, started = time.thread_time(), time.perf_counter()
        placement = self.engine.place(demand)
        if placement is not None:
            hold(self.engine.inventory, demand, placement)
        took = time.perf_counter() - started
        self.cpu_s = time.thread_time() - worked
        if placement is not None:
            self.held += demand.share_in_all
            self.live.append((demand, placement))
        return took

    def leave(self) -> None:
        """Let random requests leave until the load is right."""
        while self.held > self.target:
            position = self.rng.randrange(len(self.live))
            self.live[position], self.live[-1] = self.live[-1], self.live[position]
            demand, placement = self.live.pop()
            let_go(self.engine.inventory, demand, placement)
            self.held -= demand.share_in_all


def measure(
    policy: Policy, devices: int, load: float, decisions: int, scans: int, progress: Progress, *, kind: str = ""
) -> dict[str, float]:
    """The decision times of one pool at one load, of a kind of `KINDS`."""
    rng = random.Random(1)
    make_nodes, make_demands = KINDS[kind]
    inventory = pool_of(make_nodes(build_nodes(devices)))
    engine = Engine(inventory, policy)
    demands = make_demands(build_demands(rng, 20_000))
    teach(policy, Counter(demands[:4000]), inventory)
    state = Load(engine, rng, load)
    title = f"{devices} devices {kind} at {load:.0%}"
    bar = progress.add_task(title, total=decisions + scans)
    arrival = 0
    while state.held < state.target:
        if arrival > 5 * devices and kind:
            # What is wanted of one vendor does not fit the others' cards: a tenth less than what does is no crowd.
            state.target = state.held * 9 // 10
            break
        if arrival > 5 * devices:
            raise SystemExit(f"{devices} devices can't be filled to {load:.0%} with this mix")
        state.arrive(demands[arrival % len(demands)], arrival)
        arrival += 1
    state.leave()
    # The prices of a pool so full: places for several are worth more than their devices only where they are short.
    teach(policy, Counter(demands[:4000]), inventory, 2)
    more = make_demands(build_demands(rng, decisions + scans + BATCHES * BATCH))
    known = set(demands)
    # Of a kind that gives shapes words of their own, those that have been asked for.
    demands = [demand if demand in known or not kind else rng.choice(demands) for demand in more]
    arrival = 0
    times, cpu_times = [], []
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(decisions):
        times.append(state.arrive(demands[arrival], arrival))
        cpu_times.append(state.cpu_s)
        state.leave()
        arrival += 1
        progress.advance(bar)
    batches = [batch(state, demands[-BATCH * number :][:BATCH]) for number in range(1, BATCHES + 1)]
    gc.enable()
    oracle = Engine(inventory, policy, index=ScanIndex)
    scan_times = []
    for number in range(scans):
        demand = demands[arrival + number]
        started = time.perf_counter()
        placement = oracle.place(demand)
        scan_times.append(time.perf_counter() - started)
        if placement != engine.place(demand):
            raise SystemExit(f"the full scan decides otherwise for {demand}")
        progress.advance(bar)
    gc.unfreeze()
    p50, p99 = _percentiles(times)
    scan = statistics.median(scan_times) if scan_times else 0.0
    return {
        "p50_us": round(1e6 * p50, 1),
        "p99_us": round(1e6 * p99, 1),
        "p99_cpu_us": round(1e6 * _percentiles(cpu_times)[1], 1),
        "batch_ms": round(1e3 * statistics.median(batches), 2),
        "mean_us": round(1e6 * statistics.fmean(times), 1),
        "full_scan_us": round(1e6 * scan, 1),
        "ratio_to_full_scan": round(scan / p50, 1),
    }


BATCH, BATCHES = 64, 20
"""Requests in a batch, as many as the writer takes at once."""


def batch(state: Load, demands: list[Demand]) -> float:
    """Seconds to decide and apply so many, after as many have left."""
    wanted, state.target = state.target, max(state.held - sum(demand.share_in_all for demand in demands), 0)
    state.leave()
    state.target = wanted
    return sum(state.arrive(demand, number) for number, demand in enumerate(demands))


Make = tuple[Callable[[list[NodeSpec]], list[NodeSpec]], Callable[[list[Demand]], list[Demand]]]
KINDS: dict[str, Make] = {
    "": (lambda nodes: nodes, lambda demands: demands),
    "mixed": (mixed_nodes, mixed_demands),
    "8 classes": (classed_nodes, classed_demands),
}


def _percentiles(times: list[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile, in seconds: medians over rounds."""
    rounds = [sorted(times[start : start + ROUND]) for start in range(0, len(times), ROUND)]
    return (
        statistics.median(part[len(part) // 2] for part in rounds),
        statistics.median(part[int(len(part) * 0.99)] for part in rounds),
    )


GANG_NODES = 1_000
GANGS = (Demand(count=8, gang_size=300), Demand(count=8, gang_size=2_000), Demand(share_milli=810, gang_size=9_000))
"""Gangs with too many members for now, for ever, and of parts."""

GANG_ROUNDS = 20


def measure_gangs(policy: Policy) -> float:
    """Refusing `GANGS` on nodes of eight devices at 85 %, reason included, in ms: the slowest one, at the median."""
    rng = random.Random(1)
    inventory = pool_of(build_nodes(GANG_NODES * 8, LARGE_POOL_KIND))
    engine = Engine(inventory, policy)
    state = Load(engine, rng, 0.85)
    demands = build_demands(rng, 40_000)
    for arrival, demand in enumerate(demands):
        if state.held >= state.target:
            break
        state.arrive(demand, arrival)
    times: dict[Demand, list[float]] = {gang: [] for gang in GANGS}
    for number in range(GANG_ROUNDS):
        # The books change between two questions, as in a live pool, so that no answer can be remembered whole.
        state.arrive(demands[number], number)
        state.leave()
        for gang in GANGS:
            started = time.perf_counter()
            placement = engine.place(gang)
            shortfall = engine.explain(gang)
            times[gang].append(time.perf_counter() - started)
            if placement is not None or not shortfall.missing:
                raise SystemExit(f"a gang that can't fit was placed, or refused without a reason: {gang}")
    return round(1e3 * max(statistics.median(of_gang) for of_gang in times.values()), 2)


def main() -> None:
    """Parse, measure every size and load, print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="6212,80000")
    parser.add_argument("--loads", default="0.4,0.85")
    parser.add_argument("--policy", default="price")
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--scans", type=int, default=60)
    parser.add_argument("--vendors", action="store_true", help="each size also with cards of four vendors")
    parser.add_argument("--classes", action="store_true", help="each size also with cards of eight sizes of memory")
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    console = Console(stderr=True)
    result: dict[str, dict[str, float] | float] = {}
    why_not = warm_up()
    if why_not:
        console.print(why_not)
    with Progress(console=console) as progress:
        sizes = [int(word) for word in options.devices.split(",")]
        kinds = ["", *["mixed"] * options.vendors, *["8 classes"] * options.classes]
        for devices, kind in [(size, kind) for size in sizes for kind in kinds]:
            amounts = options.decisions, options.scans
            runs = [
                measure(make_policy(options.policy), devices, load, *amounts, progress, kind=kind)
                for load in map(float, options.loads.split(","))
            ]
            worst = {key: max(run[key] for run in runs) for key in runs[0] if key != "ratio_to_full_scan"}
            worst["ratio_to_full_scan"] = min(run["ratio_to_full_scan"] for run in runs)
            result[f"{devices} {kind}".strip()] = worst
            if not options.json:
                for run in runs:
                    console.print(devices, kind, run)
    result["gang_refused_ms"] = measure_gangs(make_policy(options.policy))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

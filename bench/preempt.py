"""How long it takes to choose victims in a full pool.

    python bench/preempt.py --nodes 1000 --gangs 400 --json

The pool is full of preemptible leases of low priority: whole devices, parts of devices, and jobs on several devices of
one or two nodes. Gangs of high priority arrive one after another. For each, the time is measured from Allocate to the
facts that name its victims (searching, checking with the placement engine, and sparing leases that are not needed). The
victims then leave, the gang starts, and it ends some gangs later, so that the pool is full again. The last line printed
is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldCreated, PreemptionStarted
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseReleasing
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import Demand, RequestSpec
from bench.lib.driving import GIB, Core, build_node, percentile

LOW = (
    (Demand(count=1, share_milli=1000), 8),
    (Demand(count=1, share_milli=500, memory_bytes=16 * GIB), 4),
    (Demand(count=1, share_milli=250, memory_bytes=8 * GIB), 4),
    (Demand(count=4, share_milli=1000), 2),
    (Demand(count=4, share_milli=1000, gang_size=2), 1),
)
HIGH = (
    (Demand(count=8, share_milli=1000), 4),
    (Demand(count=8, share_milli=1000, gang_size=2), 4),
    (Demand(count=8, share_milli=1000, gang_size=8), 2),
    (Demand(count=4, share_milli=1000, gang_size=4), 3),
    (Demand(count=1, share_milli=1000, gang_size=16), 2),
    (Demand(count=1, share_milli=500, memory_bytes=16 * GIB), 4),
)
ALIVE = 12
"""How many gangs run at a time."""


def fill(core: Core, rng: random.Random) -> int:
    """Add low-priority leases until nothing fits and more of them wait. Returns how many run."""
    number = granted = misses = 0
    shapes, weights = [demand for demand, _ in LOW], [weight for _, weight in LOW]
    while misses < 60:
        number += 1
        demand = rng.choices(shapes, weights)[0]
        spec = RequestSpec(demand=demand, tenant=f"t{number % 20}", preemptible=True, grace_ms=10_000, ttl_ms=0)
        core.now_ms += rng.randrange(50)
        core.do(c.Allocate(f"low-{number:07d}", spec))
        core.settle()
        if any(isinstance(fact, LeaseGranted) for fact in core.take_facts()):
            core.report(f"low-{number:07d}", c.ReportStatus.ACTIVE)
            granted += 1
        else:
            misses += 1
    return granted


def confirm(core: Core) -> None:
    """Confirm everything that was granted."""
    core.settle()
    for fact in core.take_facts():
        if isinstance(fact, LeaseGranted):
            core.report(fact.lease_id, c.ReportStatus.ACTIVE)


def main() -> None:
    """Fill, then let gangs arrive."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gangs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    core = Core(CoreConfig(preemptions_max=1000, confirm_timeout_ms=10**9))
    for number in range(options.nodes):
        core.connect(build_node(f"node-{number:05d}", 8))
    running = fill(core, rng)
    shapes, weights = [demand for demand, _ in HIGH], [weight for _, weight in HIGH]
    times_ns: list[int] = []
    cpus_ns: list[int] = []
    victims: list[int] = []
    alive: list[str] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    for number in range(options.gangs):
        core.now_ms += rng.randrange(200, 4000)
        core.settle()
        core.take_facts()
        lease_id = f"high-{number:06d}"
        spec = RequestSpec(demand=rng.choices(shapes, weights)[0], tenant="urgent", priority=100, ttl_ms=0)
        core.decide_ns = core.decide_cpu_ns = 0
        core.do(c.Allocate(lease_id, spec))
        while core.decider.wants_admission() and lease_id not in core.state.holds:
            core.do(c.Admit())
        took_ns, cpu_ns = core.decide_ns, core.decide_cpu_ns
        facts = core.take_facts()
        started = [fact for fact in facts if isinstance(fact, PreemptionStarted)]
        if any(isinstance(fact, HoldCreated) for fact in facts):
            times_ns.append(took_ns)
            cpus_ns.append(cpu_ns)
            victims.append(sum(len(fact.victims) for fact in started))
        for fact in facts:
            if isinstance(fact, LeaseReleasing):
                core.report(fact.lease_id, c.ReportStatus.GONE)
        confirm(core)
        if not core.state.leases[lease_id].holding:
            raise SystemExit(f"{lease_id} did not start: {core.state.leases[lease_id]}")
        alive.append(lease_id)
        if len(alive) > ALIVE:
            ended = alive.pop(0)
            core.do(c.Release(ended))
            core.report(ended, c.ReportStatus.GONE)
            confirm(core)
    gc.enable()
    result = {
        "nodes": options.nodes,
        "leases": running,
        "gangs": options.gangs,
        "preempting": len(times_ns),
        "victims_mean": round(sum(victims) / max(len(victims), 1), 2),
        "decision_p50_ms": round(percentile(times_ns, 0.5) / 1e6, 2),
        "decision_p99_ms": round(percentile(times_ns, 0.99) / 1e6, 2),
        "decision_cpu_p50_ms": round(percentile(cpus_ns, 0.5) / 1e6, 2),
        "decision_cpu_p99_ms": round(percentile(cpus_ns, 0.99) / 1e6, 2),
        "decision_max_ms": round(max(times_ns, default=0) / 1e6, 2),
    }
    if not options.json:
        for name, value in result.items():
            print(f"{name:18} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""The cost of 100,000 waiting requests: a full pass along the lines, its turns, and new requests meanwhile.

    python bench/admission.py --queued 100000 --guarantees --json

A pool of 1,000 nodes is full. Requests of 20 tenants in 4 queues wait: of few kinds (as in practice), or, with
`--distinct`, each a little different. With `--guarantees` every tenant holds leases of one device each: its guarantee,
and as much again that it borrows. Then something is freed, and one pass goes along all lines. Between its turns a new
request comes (Allocate, in the core alone). The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueuePolicy, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import Demand, RequestSpec
from bench.lib.driving import GIB, Core, build_node, percentile

TENANTS, QUEUES, NODE_DEVICES = 20, 4, 8


def demand_of(rng: random.Random, *, distinct: bool) -> Demand:
    """Something that does not fit a full pool."""
    if distinct:
        return Demand(count=rng.choice((1, 1, 2, 4)), share_milli=1000, memory_bytes=rng.randrange(8 * GIB, 32 * GIB))
    return Demand(
        count=rng.choice((1, 1, 2, 4, 8)), share_milli=1000, memory_bytes=rng.choice((0, 8 * GIB, 16 * GIB, 24 * GIB))
    )


def fill(options: argparse.Namespace) -> Core:
    """A full pool with its tenants and queues."""
    core = Core(CoreConfig(confirm_timeout_ms=10**12, queued_max=options.queued + 10_000))
    queues = [QueueSpec(name="root", parent="", policy=QueuePolicy.FAIR_SHARE)]
    queues += [
        QueueSpec(name=f"q{n}", policy=QueuePolicy.FAIR_SHARE, reserve_after_ms=0, quota=Quota(weight=n + 1))
        for n in range(QUEUES)
    ]
    share = options.nodes * NODE_DEVICES * 1000 // TENANTS
    guaranteed = Amount(share // 2 if options.guarantees else 0)
    tenants = [TenantSpec(name=f"t{n}", quota=Quota(guaranteed, Amount(10**9, -1))) for n in range(TENANTS)]
    for number in range(options.nodes):
        core.connect(build_node(f"node-{number:05d}", NODE_DEVICES))
    core.do(
        c.Apply(
            queues=tuple((spec, c.ANY_VERSION) for spec in queues), tenants=tuple((t, c.ANY_VERSION) for t in tenants)
        )
    )
    core.settle()
    each = 1 if options.guarantees else NODE_DEVICES
    for number in range(options.nodes * NODE_DEVICES // each):
        tenant = f"t{number % TENANTS}" if options.guarantees else "t0"
        spec = RequestSpec(demand=Demand(count=each, share_milli=1000), tenant=tenant, ttl_ms=0)
        core.do(c.Allocate(f"run-{number:07d}", spec))
    core.settle()
    return core


def main() -> None:
    """Fill, queue, free, pass."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--distinct", action="store_true", help="no two requests are alike")
    parser.add_argument("--guarantees", action="store_true", help="every tenant has a guarantee, and has used it up")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    core = fill(options)
    core.take_facts()
    gc.collect()
    gc.freeze()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    for number in range(options.queued):
        core.now_ms += 1
        spec = RequestSpec(
            demand=demand_of(rng, distinct=options.distinct),
            tenant=f"t{rng.randrange(TENANTS)}",
            queue=f"q{rng.randrange(QUEUES)}",
            ttl_ms=0,
        )
        core.do(c.Allocate(f"wait-{number:07d}", spec))
    queueing_s = time.perf_counter() - started
    core.take_facts()
    gc.collect()
    gc.freeze()
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    # A part of a device that is too small for every request: all are tried, and nothing is granted.
    core.settle()
    core.state.free_capacity()
    turns_ns, turns_cpu_ns, allocate_ns, turns = [], [], [], 0
    pass_ns = cpu_ns = 0
    while core.decider.wants_admission():
        if turns and core.decider.known.memory.admission is None:
            break  # with guarantees, the new requests cause a pass of their own
        started_ns, started_cpu = time.perf_counter_ns(), time.thread_time_ns()
        core.do(c.Admit())
        took, took_cpu = time.perf_counter_ns() - started_ns, time.thread_time_ns() - started_cpu
        pass_ns, cpu_ns, turns = pass_ns + took, cpu_ns + took_cpu, turns + 1
        turns_ns.append(took)
        turns_cpu_ns.append(took_cpu)
        if turns % 16 == 0:
            started_ns = time.perf_counter_ns()
            spec = RequestSpec(demand=Demand(count=1, share_milli=1000), tenant="new", ttl_ms=0)
            core.do(c.Allocate(f"new-{turns:07d}", spec))
            allocate_ns.append(time.perf_counter_ns() - started_ns)
    core.do(c.Release("run-0000000"))
    core.report("run-0000000", c.ReportStatus.GONE)
    started_ns = time.perf_counter_ns()
    core.settle()
    granting_ns = time.perf_counter_ns() - started_ns
    result = {
        "queued": options.queued,
        "distinct": options.distinct,
        "guarantees": options.guarantees,
        "lines": sum(len(lines.lines) for of_queue in core.state.lines.queues.values() for lines in of_queue.values()),
        "queue_us_each": round(1e6 * queueing_s / options.queued, 1),
        "pass_ms": round(pass_ns / 1e6, 1),
        "pass_cpu_ms": round(cpu_ns / 1e6, 1),
        "turns": turns,
        "turn_p99_ms": round(percentile(turns_ns, 0.99) / 1e6, 2),
        "turn_max_ms": round(max(turns_ns) / 1e6, 2),
        "turn_cpu_p99_ms": round(percentile(turns_cpu_ns, 0.99) / 1e6, 2),
        "turn_cpu_max_ms": round(max(turns_cpu_ns) / 1e6, 2),
        "allocate_p99_ms": round(percentile(allocate_ns, 0.99) / 1e6, 2),
        "granting_pass_ms": round(granting_ns / 1e6, 1),
        "memory_bytes_each": memory_kb * 1024 // options.queued,
    }
    if not options.json:
        for name, value in result.items():
            print(f"{name:18} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

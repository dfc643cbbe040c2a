"""Whether a pool that works steadily for a while grows: memory, file descriptors, threads, tasks, waiting times.

    python bench/soak.py --minutes 10 --json

A real coordinator (SQLite) and real agents on simulated GPUs, each a process; beside them agents that speak the
contract, of which one leaves and comes back every few seconds. Launchers use the SDK: they hold leases with
keep-alives, watch, list, and now and then open a new connection, or ask for what can't be had and give up. Faults are
off. Ended leases are remembered for `--retain` seconds (not the ten minutes of the default), and snapshots are taken
every `--snapshot-every` facts, so that everything that is meant to come and go does so many times.

What is read every `--every` seconds after the first fifth of the time (the warm-up) counts. `slope_mib_per_h` is the
least-squares line through all of a process's resident memory; its standard error is beside it, since on ten minutes an
allocator's single step of 1 MiB looks like 3 to 6 MiB/h. Descriptors, threads and tasks are compared between the
lowest reading of the first and that of the last quarter: what is only on its way is in neither. Waiting times are of
`lease(…)` until ACTIVE. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.pool import LocalPool, PoolPlan
from aliquot.client import AsyncPool, PoolError
from aliquot.coordinator.core.ledger.entries import Entry, EntryKind
from bench._pool import percentile
from tests.failover.agents import Agent

_TASKS = re.compile(r"^aliquot_event_loop_tasks (\S+)$", re.MULTILINE)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One process at one moment."""

    at_s: float
    rss_bytes: int
    fds: int
    threads: int
    tasks: int | None = None
    """Of the event loop, where the process says so."""


@dataclass
class Soak:
    """What is going on, and what was read of it."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(monotonic time of the answer, milliseconds until ACTIVE)."""
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    events: int = 0
    reconnects: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(6))


def read_process(pid: int, tasks: int | None = None) -> Reading:
    """From /proc."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Reading(
        time.monotonic(),
        int(fields["VmRSS"].split()[0]) * 1024,
        sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        int(fields["Threads"]),
        tasks,
    )


def scraped_tasks(url: str) -> int:
    """How many tasks the coordinator's event loop has."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = _TASKS.search(answer.read().decode())
    if found is None:
        raise RuntimeError("the coordinator does not say how many tasks it has")
    return int(float(found[1]))


async def sample(soak: Soak, pool: LocalPool, every_s: float) -> None:
    """Read everything again and again."""
    while True:
        tasks = await asyncio.to_thread(scraped_tasks, f"http://{pool.metrics}/metrics")
        soak.readings.setdefault("coordinator", []).append(read_process(pool.coordinator.pid, tasks))
        for node in pool.nodes:
            soak.readings.setdefault(f"agent of {node.name}", []).append(read_process(node.agent.pid))
        # This process holds the SDK; its memory also holds what is measured, and is not judged.
        soak.readings.setdefault("launchers", []).append(read_process(os.getpid(), len(asyncio.all_tasks())))
        await asyncio.sleep(every_s)


async def launcher(soak: Soak, address: str, pause_s: float, number: int) -> None:
    """Hold one lease after the other; a new connection after every thirtieth."""
    draw = soak.random
    while True:
        async with AsyncPool([address], tenant=f"team/{number % 3}") as pool:
            for turn in range(30):
                await asyncio.sleep(draw.expovariate(1 / pause_s))
                try:
                    started = time.monotonic()
                    if turn % 10 == 9:
                        with contextlib.suppress(PoolError):
                            await pool.lease("8(no-such-model)", wait_s=0.2)
                        soak.refused += 1
                        continue
                    async with pool.lease("0.05,64Mi", wait_s=60):
                        now = time.monotonic()
                        soak.waits.append((now, (now - started) * 1e3))
                        await asyncio.sleep(draw.uniform(0, pause_s))
                except PoolError as error:
                    soak.failed.append(f"launcher {number}: {error}")
        soak.reconnects += 1


async def watcher(soak: Soak, address: str) -> None:
    """Follow all that happens, as a dashboard does, and list and look now and then."""
    async with AsyncPool([address], tenant="team") as pool:
        watching = asyncio.create_task(_watch(soak, pool))
        try:
            while True:
                await asyncio.sleep(2)
                await pool.status()
                async for _ in pool.leases():
                    pass
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _watch(soak: Soak, pool: AsyncPool) -> None:
    async for _ in pool.watch():
        soak.events += 1


async def come_and_go(soak: Soak, address: str, agents: int, every_s: float) -> None:
    """Contract-speaking agents, of which one loses its connection every few seconds."""
    running = [asyncio.create_task(Agent([address], number).run()) for number in range(agents)]
    try:
        for number in count():
            await asyncio.sleep(every_s)
            leaving = number % agents
            running[leaving].cancel()
            await asyncio.gather(running[leaving], return_exceptions=True)
            running[leaving] = asyncio.create_task(Agent([address], leaving).run())
            soak.reconnects += 1
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run(arguments: argparse.Namespace, pool: LocalPool) -> Soak:
    """Work for the time that was asked for."""
    soak = Soak()
    pause_s = arguments.launchers / arguments.rate / 1.5
    tasks = [asyncio.create_task(come_and_go(soak, pool.address, arguments.agents, arguments.leave_every))]
    tasks.append(asyncio.create_task(watcher(soak, pool.address)))
    tasks += [
        asyncio.create_task(launcher(soak, pool.address, pause_s, number)) for number in range(arguments.launchers)
    ]
    tasks.append(asyncio.create_task(sample(soak, pool, arguments.every)))
    try:
        done, _ = await asyncio.wait(tasks, timeout=60 * arguments.minutes, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return soak


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope by least squares, and its standard error."""
    n = len(points)
    if n < 3:
        return 0.0, 0.0
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, (residual / (n - 2) / spread) ** 0.5


def judged(readings: list[Reading]) -> dict[str, object]:
    """What became of one process."""
    quarter = max(1, len(readings) // 4)
    first, last = readings[:quarter], readings[-quarter:]
    slope, error = line_through([(each.at_s / 3600, each.rss_bytes / _MIB) for each in readings])
    judged: dict[str, object] = {
        "rss_mib_first_quarter": round(sum(each.rss_bytes for each in first) / quarter / _MIB, 2),
        "rss_mib_last_quarter": round(sum(each.rss_bytes for each in last) / quarter / _MIB, 2),
        "slope_mib_per_h": round(slope, 2),
        "slope_standard_error": round(error, 2),
        "fds": [min(each.fds for each in first), min(each.fds for each in last)],
        "threads": [min(each.threads for each in first), min(each.threads for each in last)],
    }
    if readings[0].tasks is not None:
        judged["tasks"] = [min(each.tasks or 0 for each in part) for part in (first, last)]
    return judged


def ledger_entry_bytes() -> float:
    """What an entry of usage takes in memory, with all that only it refers to."""
    several = 10_000
    tracemalloc.start()
    kept = [
        Entry(
            number=number,
            kind=EntryKind.USAGE,
            from_ms=1_790_000_000_000 + number,
            to_ms=1_790_000_001_000 + number,
            tenant="team",
            queue="default",
            model="A100-40",
            lease_id=f"l-{number:013}",
            slice_id=f"l-{number:013}.1.0",
            share_milli=50,
            memory_bytes=64 * _MIB,
        )
        for number in range(several)
    ]
    by_tenant = list(kept)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(by_tenant)


def result_of(arguments: argparse.Namespace, soak: Soak, began: float, ended: float) -> dict[str, object]:
    """The line at the end."""
    warm = began + (ended - began) / 5
    waits = [(at, wait) for at, wait in soak.waits if at >= warm]
    quarter_s = (ended - warm) / 4
    first = sorted(wait for at, wait in waits if at < warm + quarter_s)
    last = sorted(wait for at, wait in waits if at >= ended - quarter_s)
    for text in soak.failed[:10]:
        print(text, file=sys.stderr)
    processes = {
        name: judged([reading for reading in readings if reading.at_s >= warm])
        for name, readings in soak.readings.items()
    }
    return {
        "minutes": round((ended - began) / 60, 2),
        "warm_up_minutes": round((warm - began) / 60, 2),
        "leases": len(soak.waits),
        "leases_per_s": round(len(soak.waits) / (ended - began), 1),
        "active_p50_ms": [round(percentile(first, 0.5), 1), round(percentile(last, 0.5), 1)],
        "active_p99_ms": [round(percentile(first, 0.99), 1), round(percentile(last, 0.99), 1)],
        "ledger_mib_per_h": round(len(soak.waits) / (ended - began) * 3600 * ledger_entry_bytes() / _MIB, 1),
        "given_up": soak.refused,
        "failed": len(soak.failed),
        "watch_events": soak.events,
        "reconnects": soak.reconnects,
        "processes": processes,
        "agents": arguments.agents + arguments.nodes,
        "launchers": arguments.launchers,
        "samples": len(soak.readings.get("coordinator", ())),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=20, help="leases a second, about")
    parser.add_argument("--nodes", type=int, default=2, help="real agents, on simulated GPUs")
    parser.add_argument("--agents", type=int, default=50, help="agents that only speak the contract")
    parser.add_argument("--launchers", type=int, default=24)
    parser.add_argument("--leave-every", type=float, default=3, help="seconds between two agents that leave")
    parser.add_argument("--every", type=float, default=5, help="seconds between two readings")
    parser.add_argument("--retain", type=int, default=20, help="seconds for which ended leases are remembered")
    parser.add_argument("--snapshot-every", type=int, default=10_000, help="facts between two snapshots")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aliquot-soak-") as folder:
        settings = Path(folder) / "coordinator.toml"
        settings.write_text(f'[coordinator]\nlimits.retain_ended = "{arguments.retain}s"\nlimits.watch_events = 2000\n')
        options = ("--config", str(settings), "--snapshot-every-facts", str(arguments.snapshot_every))
        plan = PoolPlan(
            nodes=arguments.nodes,
            gpus=4,
            listen="127.0.0.1:0",
            metrics_port=0,
            agent_metrics_port=0,
            tiers=("watchdog",),
            coordinator_options=(*options, "--log-level", "warning"),
        )
        say = (lambda text: None) if arguments.json else print
        with LocalPool(Layout(Path(folder) / "pool"), plan, say) as pool:
            pool.start()
            began = time.monotonic()
            soak = asyncio.run(run(arguments, pool))
            result = result_of(arguments, soak, began, time.monotonic())
    if not arguments.json:
        for key, value in result.items():
            print(f"{key:20} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

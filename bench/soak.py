"""Whether a pool under steady work grows: memory, descriptors, threads, tasks, disk, waiting times.

    python bench/soak.py --minutes 10 --json

A real coordinator (SQLite) and real agents on simulated GPUs, each a process; beside them agents that speak the
contract, of which one leaves and comes back every few seconds. Launchers use the SDK: they hold leases with
keep-alives, watch, list, and now and then open a new connection, or ask for something impossible and give up. There are
no faults.

Everything that is kept by design has a bound. Here the bounds are so low that all are reached within the first fifth of
the time (the warm-up), and what comes and goes does so many times: ended leases are remembered for `--retain` seconds,
2,000 changes for watchers, `--entries` entries of usage (older ones are summed up by the hour), and a snapshot is taken
every `--snapshot-every` facts. `kept` says how much there was of each in the first and in the last quarter of the
measured time: if the numbers are equal, a slope has another cause. With other bounds memory rises until these are
reached; `bytes_each` says by how much.

Processes are read every `--every` seconds; readings after the warm-up count. `slope_mib_per_h` is the least-squares
line through a process's resident memory, with its standard error: in ten minutes a single step of an allocator by 1 MiB
looks like 3 to 6 MiB/h. `slope_second_half` is the same for the second half: what fills up becomes flatter, a leak does
not. Descriptors, threads, tasks and disk are compared by the lowest reading of the first and of the last quarter, which
leaves out what is only temporary; `disk_mib_most` is the highest. Waiting times are those of `lease(…)` until ACTIVE;
`while_snapshots` are those of leases asked for while a snapshot was written or records were dropped after one. The last
line is one JSON object.
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
from aliquot.cli.localpool.pool import LocalPool, PoolSetup
from aliquot.client import AsyncPool, PoolError
from aliquot.coordinator.core.books.ledger.entries import Entry, EntryKind
from bench.lib.pool import percentile
from tests.failover.agents import Agent

_SAMPLE = re.compile(r"^([a-z_]+(?:{[^}]*})?) (\S+)$", re.MULTILINE)
_TASKS = "aliquot_event_loop_tasks"
_KEPT = {
    "ended_leases": 'aliquot_leases{state="ENDED"}',
    "ledger_entries": "aliquot_ledger_entries",
    "ledger_sums": "aliquot_ledger_sums",
    "changes_for_watchers": "aliquot_watch_kept",
}
_AROUND_SNAPSHOT_S = 2.0
"""For this long before a snapshot's file appears it is being written; for this long afterwards records are dropped."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One process at one moment."""

    at_s: float
    rss_bytes: int
    fds: int
    threads: int
    tasks: int | None = None
    """Of the event loop, if the process reports them."""
    kept: dict[str, int] = field(default_factory=dict)
    disk_bytes: int = 0


@dataclass
class Soak:
    """What happened, and the readings."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    snapshots: dict[str, float] = field(default_factory=dict)
    """When each snapshot was first seen."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(monotonic time of the answer, milliseconds until ACTIVE)."""
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    events: int = 0
    reconnects: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(6))


def read_process(
    pid: int, tasks: int | None = None, kept: dict[str, int] | None = None, disk_bytes: int = 0
) -> Reading:
    """A reading from /proc."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Reading(
        time.monotonic(),
        int(fields["VmRSS"].split()[0]) * 1024,
        sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        int(fields["Threads"]),
        tasks,
        kept or {},
        disk_bytes,
    )


def scraped(url: str) -> dict[str, int]:
    """The coordinator's metrics."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return {name: int(float(value)) for name, value in _SAMPLE.findall(answer.read().decode())}


def disk_bytes(journal: Path) -> int:
    """The size of the journal, its log and its snapshots."""
    total = 0
    for path in [*journal.parent.glob(f"{journal.name}*"), *journal.parent.glob(f"{journal.name}.snapshots/*")]:
        with contextlib.suppress(FileNotFoundError):  # renamed, or dropped
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


async def follow_snapshots(soak: Soak, journal: Path) -> None:
    """Note when each snapshot appears."""
    while True:
        for path in journal.parent.glob(f"{journal.name}.snapshots/*.snap"):
            soak.snapshots.setdefault(path.name, time.monotonic())
        await asyncio.sleep(0.2)


async def sample(soak: Soak, pool: LocalPool, journal: Path, every_s: float) -> None:
    """Read everything again and again."""
    while True:
        said = await asyncio.to_thread(scraped, f"http://{pool.metrics}/metrics")
        kept = {name: said[metric] for name, metric in _KEPT.items()}
        soak.readings.setdefault("coordinator", []).append(
            read_process(pool.coordinator.pid, said[_TASKS], kept, disk_bytes(journal))
        )
        for node in pool.nodes:
            soak.readings.setdefault(f"agent of {node.name}", []).append(read_process(node.agent.pid))
        # This process runs the SDK; its memory also holds the measurements and is not judged.
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
    """Watch everything, as a dashboard does, and list now and then."""
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
    """Agents that speak the contract, of which one loses its connection every few seconds."""
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


async def run(arguments: argparse.Namespace, pool: LocalPool, journal: Path) -> Soak:
    """Work for the time that was asked for."""
    soak = Soak()
    pause_s = arguments.launchers / arguments.rate / 1.5
    tasks = [asyncio.create_task(come_and_go(soak, pool.address, arguments.agents, arguments.leave_every))]
    tasks.append(asyncio.create_task(watcher(soak, pool.address)))
    tasks += [
        asyncio.create_task(launcher(soak, pool.address, pause_s, number)) for number in range(arguments.launchers)
    ]
    tasks.append(asyncio.create_task(sample(soak, pool, journal, arguments.every)))
    tasks.append(asyncio.create_task(follow_snapshots(soak, journal)))
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
    """The results of one process."""
    quarter = max(1, len(readings) // 4)
    first, last = readings[:quarter], readings[-quarter:]
    points = [(each.at_s / 3600, each.rss_bytes / _MIB) for each in readings]
    slope, error = line_through(points)
    later_slope, later_error = line_through(points[len(points) // 2 :])
    judged: dict[str, object] = {
        "rss_mib_first_quarter": round(sum(each.rss_bytes for each in first) / quarter / _MIB, 2),
        "rss_mib_last_quarter": round(sum(each.rss_bytes for each in last) / quarter / _MIB, 2),
        "slope_mib_per_h": round(slope, 2),
        "slope_standard_error": round(error, 2),
        "slope_second_half": [round(later_slope, 2), round(later_error, 2)],
        "fds": [min(each.fds for each in first), min(each.fds for each in last)],
        "threads": [min(each.threads for each in first), min(each.threads for each in last)],
    }
    if readings[0].tasks is not None:
        judged["tasks"] = [min(each.tasks or 0 for each in part) for part in (first, last)]
    if readings[0].kept:
        judged["kept"] = {
            name: [round(sum(each.kept[name] for each in part) / quarter) for part in (first, last)]
            for name in readings[0].kept
        }
    if readings[0].disk_bytes:
        judged["disk_mib"] = [round(min(each.disk_bytes for each in part) / _MIB, 2) for part in (first, last)]
        judged["disk_mib_most"] = round(max(each.disk_bytes for each in readings) / _MIB, 2)
    return judged


def ledger_entry_bytes() -> float:
    """The memory of an entry of usage, with everything that only it refers to."""
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
    snapshots = [at for at in soak.snapshots.values() if at >= warm]
    meanwhile = sorted(wait for at, wait in waits if any(abs(at - then) < _AROUND_SNAPSHOT_S for then in snapshots))
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
        "snapshots": len(snapshots),
        "while_snapshots": {
            "leases": len(meanwhile),
            "active_p50_ms": round(percentile(meanwhile, 0.5), 1),
            "active_p99_ms": round(percentile(meanwhile, 0.99), 1),
        },
        "bytes_each": {"ledger_entry": round(ledger_entry_bytes())},
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
    parser.add_argument("--entries", type=int, default=1_000, help="entries of usage that are kept one by one")
    parser.add_argument("--snapshot-every", type=int, default=4_000, help="facts between two snapshots")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aliquot-soak-") as folder:
        settings = Path(folder) / "coordinator.toml"
        settings.write_text(
            f'[coordinator]\nlimits.retain_ended = "{arguments.retain}s"\nlimits.watch_events = 2000\n'
            f"limits.ledger_entries_max = {arguments.entries}\n"
        )
        options = ("--config", str(settings), "--snapshot-every-facts", str(arguments.snapshot_every))
        plan = PoolSetup(
            nodes=arguments.nodes,
            gpus=4,
            listen="127.0.0.1:0",
            metrics_port=0,
            agent_metrics_port=0,
            tiers=("watchdog",),
            coordinator_options=(*options, "--log-level", "warning"),
        )
        say = (lambda text: None) if arguments.json else print
        layout = Layout(Path(folder) / "pool")
        with LocalPool(layout, plan, say) as pool:
            pool.start()
            began = time.monotonic()
            soak = asyncio.run(run(arguments, pool, layout.journal))
            result = result_of(arguments, soak, began, time.monotonic())
    if not arguments.json:
        for key, value in result.items():
            print(f"{key:20} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

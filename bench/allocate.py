"""How many durable leases a second the coordinator grants, over real gRPC, with SQLite or PostgreSQL.

    python bench/allocate.py --callers 64 --seconds 10 --json

A lease is a durable Allocate and a durable Release. Three measurements, each with a fresh coordinator process and
the launchers in another: GRANTED on 1,000 declared nodes; ACTIVE with agents (a third process) that confirm over
real sessions; and batches of 64. The last line is one JSON object.

About half of a lease's cost is gRPC for Python itself, which differs by a factor of two between machines, and on a
shared machine between minutes. So the same launchers also call a server that does nothing (`lib/bare.py`), for half the
time before and half the time after the measurement of GRANTED: `bare_pairs_per_s` is how many pairs of calls the
machine could carry at that moment, and `ratio_to_bare` how much of that durable leases reach. The project's bars of
2,000 leases/s GRANTED, 700/s ACTIVE and 8,000/s in batches are for a machine with 4,100 pairs/s, so they are 0.49, 0.17
and 1.95 of it (`ratio_to_bare`, `active_ratio_to_bare`, `batch_ratio_to_bare`). On a busy machine wall-clock ratios
still scatter; `cpu_ratio_to_bare`, the server's processor time per pair of calls over the coordinator's per lease,
scatters less, and so does `batch_cpu_ratio_to_bare`, the same of batches. Latencies are not scaled: callers that never
pause wait `callers / (2 * leases_per_s)` seconds for each of their two calls on average. `decide_us_per_lease` and
`commits_per_lease` are the coordinator's own metrics.

A coordinator loads compiled scoring once, in its first busy seconds, from a process that makes it meanwhile. So each
measurement begins with load that is not counted: for `--warm-up` seconds, whose latency is `first_p99_ms`, and on until
that has been loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement.policies.price import Price
from bench.lib.pool import (
    COORDINATOR,
    WITHOUT_A_DOOR,
    Agents,
    Process,
    bare_server,
    coordinator,
    declare,
    declared_nodes,
    in_process,
)
from tests.certificates import Authority
from tests.conftest import postgres_bin_dir
from tests.failover import server

_WARM_UP_S_MAX = 180
_CPU_RATIOS = {
    "cpu_ratio_to_bare": "cpu_us_per_lease",
    "batch_cpu_ratio_to_bare": "batch_cpu_us_per_lease",
}
_RATIOS = {
    "ratio_to_bare": "leases_per_s",
    "active_ratio_to_bare": "active_per_s",
    "batch_ratio_to_bare": "batch_items_per_s",
}


async def bare(arguments: argparse.Namespace) -> dict[str, float]:
    """The rate of a server that does nothing, and its cost."""
    with bare_server() as process:
        seconds = str(max(arguments.seconds / 2, 1.0))
        cpu_s = process.cpu_s()
        result = await in_process("load.py", process.address, "--callers", str(arguments.callers), "--seconds", seconds)
        return {
            "pairs_per_s": result["leases_per_s"],
            "cpu_us_per_pair": (process.cpu_s() - cpu_s) * 1e6 / result["all_leases"],
        }


async def granted(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One lease per call."""
    with coordinator(*flags(arguments, folder / "granted.db")) as process:
        await declare(process.address, declared_nodes(arguments.nodes, 8))
        first = await warm_up(process, arguments)
        cpu_s, main_s, before = process.cpu_s(), process.main_cpu_s(), process.measured()
        result = await load(process.address, arguments)
        cpu_s, main_s, after = process.cpu_s() - cpu_s, process.main_cpu_s() - main_s, process.measured()
        leases = result["all_leases"]
        return {
            "leases_per_s": round(result["leases_per_s"], 1),
            "p50_ms": round(result["p50_ms"], 2),
            "p99_ms": round(result["p99_ms"], 2),
            "first_p99_ms": round(first["p99_ms"], 2),
            "failed": result["failed"],
            "cpu_us_per_lease": round(cpu_s * 1e6 / leases, 1),
            "main_cpu_us_per_lease": round(main_s * 1e6 / leases, 1),
            "decide_us_per_lease": round(_more(before, after, "aliquot_decision_seconds_sum") * 1e6 / leases, 1),
            "commits_per_lease": round(_more(before, after, "aliquot_commit_seconds_count") / leases, 3),
            "coordinator_cpu_cores": round(cpu_s / (result["took_s"] + 1), 2),
            "client_cpu_cores": round(result["client_cpu_cores"], 2),
            "rss_mb": round(process.rss_mb(), 1),
        }


async def access(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """What it costs to know who calls, and TLS beside it: without a door, with one, and with both, by turns."""
    authority = Authority.create(folder / "authority")
    certificate, key = authority.certify("bench")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    ways: dict[str, tuple[Sequence[str], tuple[str, ...], tuple[str, ...]]] = {
        "open": (WITHOUT_A_DOOR, (), ()),
        "identity": (COORDINATOR, (), ()),
        "tls": (COORDINATOR, tls, ("--ca", str(authority.ca))),
    }
    costs: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way, (program, more, trust) in ways.items():
            journal = folder / f"{way}-{number}.db"
            with coordinator(*flags(arguments, journal), *more, program=program) as process:
                await declare(process.address, declared_nodes(arguments.nodes, 8), authority.ca if trust else None)
                await load(process.address, arguments, *trust)
                cpu_s = process.cpu_s()
                result = await load(process.address, arguments, *trust)
                costs[way].append((process.cpu_s() - cpu_s) * 1e6 / result["all_leases"])
    found = {f"{way}_cpu_us_per_lease": round(median(each), 1) for way, each in costs.items()}
    for way in ("identity", "tls"):
        ratios = [each / bare for each, bare in zip(costs[way], costs["open"], strict=True)]
        found[f"{way}_cpu_ratio"] = round(median(ratios), 3)
    return found


async def active(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One lease per call, each until its agent has confirmed."""
    with coordinator(*flags(arguments, folder / "active.db")) as process:
        agents = await Agents.start(process.address, arguments.agents)
        try:
            await warm_up(process, arguments)
            result = await load(process.address, arguments, "--until", "ACTIVE")
        finally:
            await agents.stop()
        return {
            "active_per_s": round(result["leases_per_s"], 1),
            "active_p50_ms": round(result["p50_ms"], 2),
            "active_p99_ms": round(result["p99_ms"], 2),
            "active_failed": result["failed"],
        }


async def batches(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """64 leases per call."""
    with coordinator(*flags(arguments, folder / "batches.db")) as process:
        await declare(process.address, declared_nodes(arguments.nodes, 8))
        await warm_up(process, arguments)
        cpu_s = process.cpu_s()
        result = await load(process.address, arguments, "--batch", "64", "--callers", "8")
        return {
            "batch_cpu_us_per_lease": round((process.cpu_s() - cpu_s) * 1e6 / result["all_leases"], 1),
            "batch_items_per_s": round(result["leases_per_s"], 1),
            "batch_p50_ms": round(result["p50_ms"], 2),
            "batch_p99_ms": round(result["p99_ms"], 2),
            "batch_failed": result["failed"],
        }


async def warm_up(process: Process, arguments: argparse.Namespace) -> dict[str, float]:
    """The first seconds of a busy coordinator, and then until it has loaded compiled scoring, where it will."""
    callers, begun_s = str(arguments.callers), time.monotonic()
    compiles = arguments.policy == Price.name and find_spec("numba") is not None
    first: dict[str, float] = {}
    while not first or (compiles and not process.measured()["aliquot_scoring_compiled"]):
        if time.monotonic() - begun_s > _WARM_UP_S_MAX:
            sys.exit(f"compiled scoring was not loaded in {_WARM_UP_S_MAX} s of load")
        seconds = str(1 if first else arguments.warm_up)
        found = await in_process(
            "load.py", process.address, "--callers", callers, "--seconds", seconds, "--warm-up", "0"
        )
        first = first or found
    return first


def _more(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before[name]


async def load(address: str, arguments: argparse.Namespace, *more: str) -> dict[str, float]:
    """Launchers in a process of their own."""
    result: dict[str, float] = await in_process(
        "load.py", address, "--callers", str(arguments.callers), "--seconds", str(arguments.seconds), *more
    )
    return result


def flags(arguments: argparse.Namespace, journal: Path) -> list[str]:
    """The coordinator's arguments."""
    place = f"sqlite:{journal}"
    if arguments.postgres is not None:
        place = f"postgres:{arguments.postgres.database(journal.stem)}"
    given = ["--journal", place, "--log-level", "warning", "--policy", arguments.policy]
    if arguments.fsync_ms:
        given += ["--fsync-ms", str(arguments.fsync_ms)]
    return given


@contextlib.contextmanager
def journal_server(arguments: argparse.Namespace) -> Iterator[None]:
    """The PostgreSQL that `--journal postgres` measures, as `arguments.postgres`."""
    arguments.postgres = None
    if arguments.journal == "sqlite":
        yield
        return
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        sys.exit("PostgreSQL's server programs are missing: apt-get install postgresql")
    with server.running(bin_dir, folder=arguments.folder) as arguments.postgres:
        yield


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the measurements that were asked for."""
    result: dict[str, object] = {
        "callers": arguments.callers,
        "nodes": arguments.nodes,
        "policy": arguments.policy,
        "journal": arguments.journal,
        "fsync_ms": arguments.fsync_ms,
        "cores": os.cpu_count(),
    }
    found: dict[str, float] = {}
    bares = [await bare(arguments)]
    phases = (("granted", granted), ("active", active), ("batches", batches), ("access", access))
    for name, phase in phases:
        if name in arguments.only:
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                found |= await phase(arguments, Path(folder))
        if name == "granted":
            bares.append(await bare(arguments))
    pairs_per_s, cpu_us = (
        sum(each[name] for each in bares) / len(bares) for name in ("pairs_per_s", "cpu_us_per_pair")
    )
    result["bare_pairs_per_s"] = round(pairs_per_s, 1)
    result["bare_cpu_us_per_pair"] = round(cpu_us, 1)
    for ratio, cost in _CPU_RATIOS.items():
        if cost in found:
            result[ratio] = round(cpu_us / found[cost], 3)
    for ratio, rate in _RATIOS.items():
        if rate in found:
            result[ratio] = round(found[rate] / pairs_per_s, 3)
    return result | found


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=5, help="seconds of load before each phase, or more")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=200, help="nodes with confirming agents, for ACTIVE")
    parser.add_argument("--policy", default=CoreConfig().policy)
    parser.add_argument(
        "--journal", choices=["sqlite", "postgres"], default="sqlite", help="postgres: a server is started"
    )
    parser.add_argument("--fsync-ms", type=int, default=0, help="make each commit as slow as a slow disk")
    parser.add_argument("--folder", help="where the journals go: the disk that is measured")
    parser.add_argument("--only", nargs="+", default=["granted", "active", "batches"], help="and access")
    parser.add_argument("--rounds", type=int, default=3, help="of access")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    with journal_server(arguments):
        result = asyncio.run(measure(arguments))
    if not arguments.json:
        for key, value in result.items():
            print(f"{key:24} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

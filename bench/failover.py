"""How long nothing is granted when the leading coordinator is killed or freezes, and whether anything is lost.

    python bench/failover.py --kills 100 --json

A real PostgreSQL, two real coordinators, launchers that use the SDK, and agents that speak the contract. Again and
again the leader gets SIGKILL, or every `--freeze-every`-th time SIGSTOP; a frozen one is ended after `--watchdog`
seconds, as by systemd's WatchdogSec, and each is started again as a standby. Times are from the signal to the next
answer to any Allocate. At the end every launcher's log and every agent's own count are compared with all facts of the
journal. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.lib.pool import percentile
from tests.conftest import postgres_bin_dir
from tests.failover import server
from tests.failover.agents import Agent
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Log, cluster, granted_after, load

_RECONCILED_WITHIN_S = 5.0


@dataclass
class Times:
    """Seconds without a grant, and the part of the agents that was reconciled by then and 5 s after the signal."""

    killed_s: list[float] = field(default_factory=list)
    frozen_s: list[float] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)
    """From the signal until the next leader's row was in the database."""
    welcomed_s: list[float] = field(default_factory=list)
    """... until it answered the first agent."""
    reconciled_s: list[float] = field(default_factory=list)
    """... until it had reconciled the first node."""
    reconciled_first: list[float] = field(default_factory=list)
    reconciled_5s: list[float] = field(default_factory=list)


async def fail_over(
    several: Cluster, agents: list[Agent], log: Log, times: Times, *, freeze: bool, watchdog_s: float
) -> None:
    """Kill or freeze the leader, and start it again as a standby."""
    old = await several.leader()
    _, epoch, _ = await asyncio.to_thread(several.row)
    signalled = time.monotonic()
    old.send(signal.SIGSTOP if freeze else signal.SIGKILL)
    ended = asyncio.create_task(_end(several, old, watchdog_s if freeze else 0.0))
    taken = asyncio.create_task(asyncio.to_thread(_taken, several, epoch))
    first = await granted_after(log, signalled + 0.005)
    while not any(agent.reconciled_epoch > epoch and agent.reconciled_at <= first for agent in agents):
        # That answer was already on its way when the signal came.
        first = await granted_after(log, first)
    (times.frozen_s if freeze else times.killed_s).append(first - signalled)
    new = [agent for agent in agents if agent.reconciled_epoch > epoch]
    times.taken_s.append(await taken - signalled)
    times.welcomed_s.append(min(agent.welcomed_at for agent in new) - signalled)
    times.reconciled_s.append(min(agent.reconciled_at for agent in new) - signalled)
    times.reconciled_first.append(_reconciled(agents, epoch, first))
    await asyncio.sleep(max(0.0, signalled + _RECONCILED_WITHIN_S - time.monotonic()))
    times.reconciled_5s.append(_reconciled(agents, epoch, signalled + _RECONCILED_WITHIN_S))
    await ended


async def _end(several: Cluster, old: object, after_s: float) -> None:
    replica = next(replica for replica in several.replicas if replica is old)
    if after_s:
        await asyncio.sleep(after_s)
        replica.send(signal.SIGKILL)
    await asyncio.to_thread(replica.ended)
    replica.start()
    await asyncio.to_thread(replica.wait_until_ready)


def _taken(several: Cluster, epoch: int) -> float:
    """When the database first named a newer leader, to 20 ms."""
    with psycopg.connect(several.conninfo, autocommit=True) as connection:
        while True:
            row = connection.execute("SELECT leader_epoch FROM aliquot.leader").fetchone()
            if row is not None and row[0] > epoch:
                return time.monotonic()
            time.sleep(0.02)


def _reconciled(agents: list[Agent], after_epoch: int, by: float) -> float:
    return sum(agent.reconciled_epoch > after_epoch and agent.reconciled_at <= by for agent in agents) / len(agents)


async def measure(arguments: argparse.Namespace, conninfo: str) -> dict[str, object]:
    """Run the whole benchmark."""
    times = Times()
    async with cluster(conninfo, 2) as several:
        agents = [Agent(several.addresses, number) for number in range(arguments.agents)]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        while not all(agent.reconciled_epoch for agent in agents):  # noqa: ASYNC110 - many agents, one look
            await asyncio.sleep(0.05)
        gc.collect()
        gc.freeze()
        try:
            async with load(several.addresses, arguments.launchers, pause_s=arguments.pause) as log:
                await granted_after(log, time.monotonic())
                for number in range(arguments.kills):
                    freeze = (
                        bool(arguments.freeze_every) and number % arguments.freeze_every == arguments.freeze_every - 1
                    )
                    await fail_over(several, agents, log, times, freeze=freeze, watchdog_s=arguments.watchdog)
                    if not arguments.json:
                        latest = (times.frozen_s if freeze else times.killed_s)[-1]
                        print(
                            f"{number + 1:4} {'froze' if freeze else 'killed'} {latest:6.2f} s:"
                            f" row {times.taken_s[-1]:.2f}, welcome {times.welcomed_s[-1]:.2f},"
                            f" node {times.reconciled_s[-1]:.2f}",
                            flush=True,
                        )
                await granted_after(log, time.monotonic())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        findings = await asyncio.to_thread(audit, conninfo, log)
    overcommitted = findings.overcommitted + [text for agent in agents for text in agent.overcommitted]
    both = sorted(times.killed_s + times.frozen_s)
    for text in findings.lost + findings.double + overcommitted:
        print(text, file=sys.stderr)
    return {
        "kills": arguments.kills,
        "lost": len(findings.lost),
        "double_grants": len(findings.double) + len(overcommitted),
        "p50_s": round(percentile(both, 0.5), 3),
        "p99_s": round(percentile(both, 0.99), 3),
        "max_s": round(both[-1], 3) if both else 0.0,
        "killed": _summary(times.killed_s),
        "frozen": _summary(times.frozen_s),
        "row_taken": _summary(times.taken_s),
        "first_agent_welcomed": _summary(times.welcomed_s),
        "first_node_reconciled": _summary(times.reconciled_s),
        "agents": arguments.agents,
        "reconciled_fraction": round(min(times.reconciled_5s, default=0.0), 3),
        "reconciled_fraction_mean": round(sum(times.reconciled_5s) / max(1, len(times.reconciled_5s)), 3),
        "reconciled_fraction_at_first_grant": round(
            sum(times.reconciled_first) / max(1, len(times.reconciled_first)), 3
        ),
        "leaders": len(findings.epochs),
        "grants": findings.grants,
        "granted_answers": len(log.granted),
        "failed_calls": len(log.failed),
        "launchers": arguments.launchers,
        "watchdog_s": arguments.watchdog,
        "cores": os.cpu_count(),
    }


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50_s": round(percentile(ordered, 0.5), 3),
        "p99_s": round(percentile(ordered, 0.99), 3),
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--launchers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two requests of a launcher")
    parser.add_argument(
        "--freeze-every", type=int, default=4, help="every so many, SIGSTOP instead of SIGKILL; 0: never"
    )
    parser.add_argument("--watchdog", type=float, default=3.0, help="seconds after which a frozen leader is ended")
    parser.add_argument("--folder", help="where PostgreSQL's files go")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        sys.exit("PostgreSQL's server programs are missing: apt-get install postgresql")
    with server.running(bin_dir, folder=arguments.folder) as postgres:
        result = asyncio.run(measure(arguments, postgres.database("failover")))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

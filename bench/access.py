"""How long a revoked caller keeps what it holds open: from the answer of the revocation to the end of its last stream.

    python bench/access.py --json

A real PostgreSQL, two real coordinators, launchers at work. Again and again a caller opens streams (watches and
keep-alives), and its token is revoked: half of the times while one coordinator leads, under load alone; half of the
times while the leader is killed and another takes over, when its streams come back for as long as they are let. Until
the revocation is answered it need not be durable, so the time counts from there; 0 where all had ended before. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.client import AsyncPool, DeviceDeclaration, NodeDeclaration, RetryPolicy, WaitUntil
from aliquot.client.access import Role, RoleGrant
from bench.lib.pool import percentile
from tests.conftest import postgres_bin_dir
from tests.failover import server
from tests.failover.cluster import Cluster, cluster, granted_after, load
from tests.failover.streams import Held, until_open

_KILL_WITHIN_S = 0.3
"""Of the revocation, before or after it."""


def _pool(several: Cluster, token: str | None = None) -> AsyncPool:
    retry = RetryPolicy(backoff_max_s=0.3)
    return AsyncPool(several.addresses, token=token, tenant="team", timeout_s=60.0, retry=retry)


async def _revoked(several: Cluster, admin: AsyncPool, number: int, streams: int, *, fail: bool) -> float:
    """Seconds from the revocation's answer to the last stream's end; at least 0."""
    made = await admin.access.issue_token(f"caller-{number}", grants=[RoleGrant(Role.USER, "team")])
    async with _pool(several, made.token) as own:
        lease = await own.allocate("0.01,64Mi", until=WaitUntil.GRANTED, detached=True)
    held = [Held(several.addresses, made.token, lease.lease_id if each % 2 else "") for each in range(streams)]
    tasks = [asyncio.create_task(each.run()) for each in held]
    await until_open(held)
    killing = asyncio.create_task(_kill(several, random.uniform(0, _KILL_WITHIN_S))) if fail else None
    if fail:
        await asyncio.sleep(random.uniform(0, _KILL_WITHIN_S))
    await admin.access.revoke_tokens([made.issued.token_id])
    answered = time.monotonic()
    await asyncio.gather(*tasks)
    if killing is not None:
        await killing
    await admin.release(lease.lease_id)
    return max(0.0, max(each.ended_at for each in held) - answered)


async def _kill(several: Cluster, after_s: float) -> None:
    await asyncio.sleep(after_s)
    old = await several.leader()
    old.send(signal.SIGKILL)
    await asyncio.to_thread(old.ended)
    old.start()
    await asyncio.to_thread(old.wait_until_ready)


async def measure(arguments: argparse.Namespace, conninfo: str) -> dict[str, object]:
    """Run the whole benchmark."""
    random.seed(arguments.seed)
    times: dict[bool, list[float]] = {False: [], True: []}
    async with cluster(conninfo, 2) as several, _pool(several) as admin:
        nodes = [
            NodeDeclaration(f"n{number}", devices=[DeviceDeclaration("A100-80")] * 8, agentless=True)
            for number in range(16)
        ]
        await admin.declare(nodes)
        gc.collect()
        gc.freeze()
        async with load(several.addresses, arguments.launchers, pause_s=arguments.pause) as log:
            await granted_after(log, time.monotonic())
            for number in range(2 * arguments.rounds):
                fail = number >= arguments.rounds
                took = await _revoked(several, admin, number, arguments.streams, fail=fail)
                times[fail].append(took)
                if not arguments.json:
                    print(f"{number + 1:4} {'takeover' if fail else 'load':9} {took * 1000:7.1f} ms", flush=True)
            granted = len(log.granted_at)
    return {
        "rounds": arguments.rounds,
        "streams": arguments.streams,
        "launchers": arguments.launchers,
        "load": _summary(times[False]),
        "takeover": _summary(times[True]),
        "grants_meanwhile": granted,
        "cores": os.cpu_count(),
    }


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(value * 1000 for value in values)
    return {
        "p50_ms": round(percentile(ordered, 0.5), 1),
        "p99_ms": round(percentile(ordered, 0.99), 1),
        "max_ms": round(ordered[-1], 1) if ordered else 0.0,
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="under load, and as many with a takeover")
    parser.add_argument("--streams", type=int, default=20, help="of the caller that is revoked; half are keep-alives")
    parser.add_argument("--launchers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two requests of a launcher")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where PostgreSQL's files go")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        sys.exit("PostgreSQL's server programs are missing: apt-get install postgresql")
    with server.running(bin_dir, folder=arguments.folder) as postgres:
        result = asyncio.run(measure(arguments, postgres.database("access")))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

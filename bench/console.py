"""What the console costs: reads of one lease over REST at a fixed rate, beside a pool of 80,000 devices.

    python bench/console.py --json

`--nodes` nodes of eight devices and `--leases` leases are there; then `--rate` reads a second of a lease, each as it is
due whether the one before has been answered or not, for `--seconds`. `rest_p99_ms` is from when a read was due to its
answer; `grpc_p99_ms` the same through the SDK, by turns. `console_cores` and `console_rss_mb` are the console's own
process. The bars: 5 ms, 0.5 cores, 300 MB. Those about the page are as
`bench/_page.py` says, and null without Chromium or the built page. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.client import AsyncPool, Request
from bench._page import fields_of_the_page
from bench._pool import coordinator, declare, declared_nodes
from tests.identity import ADMIN_TOKEN

PROGRAM = [sys.executable, "-c", "import sys; from aliquot.console.main import main; sys.exit(main())"]
LEFT_OUT = ("coordinator_cores_100_viewers",)


async def at_rate(read: Callable[[int], Awaitable[Any]], rate: int, seconds: float) -> list[float]:
    """How long each read took from when it was due, in milliseconds."""
    took: list[float] = []
    began = time.perf_counter()

    async def one(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await read(number)
        took.append(1000 * (time.perf_counter() - due))

    await asyncio.gather(*(one(number) for number in range(round(rate * seconds))))
    return sorted(took)


def _p99(took: list[float]) -> float:
    return round(took[len(took) * 99 // 100], 2)


async def measure(address: str, console: str, process: psutil.Process, options: argparse.Namespace) -> dict[str, Any]:
    """REST and the SDK by turns."""
    await declare(address, declared_nodes(options.nodes, 8))
    async with (
        AsyncPool(address, token=ADMIN_TOKEN) as pool,
        httpx.AsyncClient(
            base_url=f"{console}/api/v1",
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=httpx.Timeout(30.0, pool=None),
        ) as http,
    ):
        asked = await pool.allocate_batch([Request("0.25", detached=True)] * options.leases)
        ids = [lease.lease_id for lease in asked if hasattr(lease, "lease_id")]

        async def by_rest(number: int) -> None:
            (await http.get(f"/leases/{ids[number % len(ids)]}")).raise_for_status()

        async def by_grpc(number: int) -> None:
            await pool.get(ids[number % len(ids)])

        rest: list[float] = []
        grpc: list[float] = []
        busy_s = 0.0
        await at_rate(by_rest, options.rate, 1.0)
        for _ in range(options.rounds):
            before = sum(process.cpu_times()[:2])
            rest += await at_rate(by_rest, options.rate, options.seconds)
            busy_s += sum(process.cpu_times()[:2]) - before
            grpc += await at_rate(by_grpc, options.rate, options.seconds)
    return dict.fromkeys(LEFT_OUT) | {
        "console_cores": round(busy_s / (options.seconds * options.rounds), 3),
        "console_rss_mb": round(process.memory_info().rss / 1e6, 1),
        "rest_p99_ms": _p99(sorted(rest)),
        "rest_p50_ms": round(sorted(rest)[len(rest) // 2], 2),
        "grpc_p99_ms": _p99(sorted(grpc)),
        "devices": options.nodes * 8,
        "leases": len(ids),
        "rate": options.rate,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--leases", type=int, default=5_000)
    parser.add_argument("--rate", type=int, default=200, help="reads a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    with coordinator("--journal", "memory:") as pool:
        command = [*PROGRAM, "--port", "0", "--coordinator", pool.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as console:
            try:
                assert console.stdout is not None
                address = json.loads(console.stdout.readline().partition(" ")[2])["address"]
                found = asyncio.run(measure(pool.address, address, psutil.Process(console.pid), options))
                found |= asyncio.run(fields_of_the_page(pool.address, address, ADMIN_TOKEN))
            finally:
                console.kill()
    if not options.json:
        for name, value in found.items():
            print(f"{name:30} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

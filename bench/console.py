"""What the console costs, beside a pool of 80,000 devices whose leases change all the time.

    python bench/console.py --json

`--nodes` nodes of eight devices and `--leases` leases are there, and `--changes` of these a second end or begin. By
turns nobody looks, and `--viewers` browsers follow the fleet, each over a connection of its own, while `--rate` leases
a second are read over REST, each as it is due whether the one before has been answered or not.

| field | is | bar |
|---|---|---|
| `coordinator_cores_100_viewers` | what the coordinator needs more while they look | 0.1 |
| `console_cores` | what the console needs while they look, and leases are read | 0.5 |
| `console_rss_mb` | its memory then | 300 |
| `rest_p50_ms`, `rest_p99_ms` | from when a read was due to its answer | 1.5, 8 |
| `rest_p50_ratio`, `rest_p99_ratio` | to the same of a server that does nothing, asked in between | |
| `contract_p50_ms` …, `contract_p99_ratio` | the same reads straight from the coordinator | 5 (p99) |
| `rest_cpu_ms` | what a read costs the console, while nobody looks | |
| `viewer_kb_s` | what a viewer is sent a second | |
| `snapshot_kb`, `snapshot_ms` | the whole fleet, compressed, and how long it takes to get | |

With `--dead N` so many clients come at last who ask for the fleet's events and never read one (10,000: those beyond the
bound `streams_max` are refused): `dead_kept`, `dead_refused`, `dead_rss_mb` (what they add to the console's memory),
`dead_console_cores`, and `dead_rest_p99_ms`, what a read takes beside them, and the like.

`first_picture_ms`, `update_ms` and `js_gzip_kb` are the page's (`lib/page.py`), null without Chromium. Client, console
and coordinator share the machine: `load` is its load average at the end. Where that is above the number of cores, times
mean little, and ratios still something. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.client import AsyncPool, Lease, Request
from aliquot.client.access import Role, RoleGrant
from bench.lib.page import fields_of_the_page
from bench.lib.pool import bare_server, coordinator, cpu_s_of, declare, declared_nodes, in_process, percentile
from bench.lib.reading import Http
from tests.identity import ADMIN_TOKEN

PROGRAM = [sys.executable, "-m", "aliquot.console"]
BATCH = 50
CALLERS = 4
"""Each may have a quarter of all streams."""


class Reading:
    """Reads of leases at a fixed rate, and of a server that does nothing in between; see `lib/reading.py`."""

    def __init__(self, bare: str, ids: list[str], rate: int, seconds: float) -> None:
        self._bare = bare
        self._ids = "\n".join(ids)
        self._said = (str(rate), str(seconds))
        self.took_ms: list[float] = []
        self.bare_ms: list[float] = []

    async def run(self, address: str) -> None:
        """At a console, or straight at the coordinator."""
        found = await in_process("reading.py", address, self._bare, *self._said, told=self._ids)
        self.took_ms += found["took_ms"]
        self.bare_ms += found["bare_ms"]

    def clear(self) -> None:
        """Begin anew."""
        self.took_ms.clear()
        self.bare_ms.clear()

    def fields(self, name: str) -> dict[str, float]:
        """By the name of what was asked; what is said beside the server that does nothing holds on a busy machine."""
        took_ms, bare_ms = sorted(self.took_ms), sorted(self.bare_ms)
        at = {part: (percentile(took_ms, part / 100), percentile(bare_ms, part / 100)) for part in (50, 99)}
        found = {f"{name}_p{part}_ms": round(took, 2) for part, (took, _) in at.items()}
        return found | {f"{name}_p{part}_ratio": round(took / bare, 2) for part, (took, bare) in at.items()}


async def churn(pool: AsyncPool, leases: list[str], changes_per_s: float, made: list[int]) -> None:
    """End some and ask for as many, for ever: a change each. `made` counts them."""
    number = 0
    while True:
        due = time.perf_counter() + 2 * BATCH / changes_per_s
        some = [leases[(number + each) % len(leases)] for each in range(BATCH)]
        await pool.release_batch(some)
        for place, lease in enumerate(await pool.allocate_batch([Request("0.25", detached=True)] * BATCH)):
            if isinstance(lease, Lease):
                leases[(number + place) % len(leases)] = lease.lease_id
        number += BATCH
        made[0] += 2 * BATCH
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


@contextlib.asynccontextmanager
async def viewers(console: str, count: int) -> AsyncIterator[list[int]]:
    """So many follow the fleet. Gives how many bytes each has read."""
    read = [0] * count
    tasks = []

    async def look(place: int, http: Http) -> None:
        while chunk := await http.reader.read(1 << 16):
            read[place] += len(chunk)

    for place in range(count):
        http = await Http.to(console)
        await http.ask("/fleet/events")
        tasks.append(asyncio.create_task(look(place, http)))
    try:
        yield read
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def dead_clients(
    console: str, console_pid: int, pool: AsyncPool, reading: Reading, options: argparse.Namespace
) -> dict[str, Any]:
    """Clients who ask for events and read none, of as many callers as it takes to reach the bound."""
    process = psutil.Process(console_pid)
    grants = (RoleGrant(Role.VIEWER),)
    tokens = [(await pool.access.issue_token(f"dead-{number}", grants=grants)).token for number in range(CALLERS)]
    host, _, port = console.removeprefix("http://").partition(":")
    before_mb = process.memory_info().rss / 1e6
    answers: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def come(number: int) -> None:
        # The first line of the answer is all that is ever read; the reader's bound lets the rest lie in the kernel.
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
        writers.append(writer)
        head = (
            f"GET /api/v1/fleet/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens[number % CALLERS]}"
        )
        writer.write(f"{head}\r\n\r\n".encode())
        answers.append(await reader.readline())

    for first in range(0, options.dead, 200):
        await asyncio.gather(*(come(number) for number in range(first, min(first + 200, options.dead))))
    await asyncio.sleep(5)
    reading.clear()
    began_cpu = cpu_s_of(console_pid)
    await reading.run(console)
    found = {
        "dead_kept": sum(b" 200 " in answer for answer in answers),
        "dead_refused": sum(b" 429 " in answer for answer in answers),
        "dead_rss_mb": round(process.memory_info().rss / 1e6 - before_mb, 1),
        "dead_console_cores": round((cpu_s_of(console_pid) - began_cpu) / options.seconds, 3),
        **reading.fields("dead_rest"),
    }
    for writer in writers:
        writer.transport.abort()
    return found


async def measure(
    address: str, console: str, bare: str, coordinator_pid: int, console_pid: int, options: argparse.Namespace
) -> dict[str, Any]:
    """All fields."""
    await declare(address, declared_nodes(options.nodes, 8))
    process = psutil.Process(console_pid)
    alone: list[float] = []
    watched: list[float] = []
    console_cores: list[float] = []
    read_bytes = 0
    async with AsyncPool(address, token=ADMIN_TOKEN) as pool:
        leases: list[str] = []
        for _ in range(0, options.leases + 1000, 1000):
            asked = await pool.allocate_batch([Request("0.25", detached=True)] * 1000)
            leases += [lease.lease_id for lease in asked if isinstance(lease, Lease)]
        read_ids = [leases.pop() for _ in range(500)]
        reading, straight = (Reading(bare, read_ids, options.rate, options.seconds) for _ in range(2))
        before = cpu_s_of(console_pid)
        await reading.run(console)
        rest_cpu_ms = 1000 * (cpu_s_of(console_pid) - before) / len(reading.took_ms)
        reading.clear()
        http = await Http.to(console)
        await http.get("/fleet")
        began = time.perf_counter()
        snapshot = await http.get("/fleet")
        snapshot_ms = 1000 * (time.perf_counter() - began)
        http.close()
        made, since = [0], time.perf_counter()
        changing = asyncio.create_task(churn(pool, leases, options.changes, made))
        for _ in range(options.rounds):
            await asyncio.sleep(8)  # who looked before has left, and so has the console
            before = cpu_s_of(coordinator_pid)
            await asyncio.sleep(options.seconds)
            alone.append((cpu_s_of(coordinator_pid) - before) / options.seconds)
            async with viewers(console, options.viewers) as read:
                await asyncio.sleep(2)
                seen, before = sum(read), cpu_s_of(coordinator_pid)
                await asyncio.sleep(options.seconds)
                watched.append((cpu_s_of(coordinator_pid) - before) / options.seconds)
                read_bytes += sum(read) - seen
                before = cpu_s_of(console_pid)
                await reading.run(console)
                console_cores.append((cpu_s_of(console_pid) - before) / options.seconds)
                await straight.run(address)
        found = {**reading.fields("rest"), **straight.fields("contract")}
        rss_mb = process.memory_info().rss / 1e6
        changes_s = made[0] / (time.perf_counter() - since)
        dead = await dead_clients(console, console_pid, pool, reading, options) if options.dead else {}
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    return {
        "coordinator_cores_100_viewers": round(statistics.median(watched) - statistics.median(alone), 3),
        "console_cores": round(statistics.median(console_cores), 3),
        "console_rss_mb": round(rss_mb, 1),
        **found,
        "rest_cpu_ms": round(rest_cpu_ms, 3),
        "viewer_kb_s": round(read_bytes / options.viewers / options.seconds / options.rounds / 1000, 2),
        "snapshot_kb": round(len(snapshot) / 1000, 1),
        "snapshot_ms": round(snapshot_ms, 1),
        "coordinator_cores": round(statistics.median(alone), 3),
        "devices": options.nodes * 8,
        "leases": len(leases),
        "changes_s": round(changes_s),
        "viewers": options.viewers,
        "rate": options.rate,
        **dead,
        "load": round(os.getloadavg()[0], 1),
    }


@contextlib.contextmanager
def console_before(address: str) -> Iterator[tuple[str, int]]:
    """A console: its address and its pid."""
    command = [*PROGRAM, "--port", "0", "--metrics-port=-1", "--coordinator", address, "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline().partition(" ")[2])["address"], process.pid
        finally:
            process.kill()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--leases", type=int, default=20_000)
    parser.add_argument("--changes", type=float, default=1_000, help="of leases a second")
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--rate", type=int, default=200, help="reads a second")
    parser.add_argument("--dead", type=int, default=0, help="clients who never read")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    with (
        coordinator("--journal", "memory:") as pool,
        console_before(pool.address) as (console, pid),
        bare_server() as bare,
    ):
        found = asyncio.run(measure(pool.address, console, bare.address, pool.popen.pid, pid, options))
        found |= asyncio.run(fields_of_the_page(pool.address, console, ADMIN_TOKEN))
    if not options.json:
        for name, value in found.items():
            print(f"{name:30} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""What those who watch cost those who call: the time of a pair of calls with and without watchers, over real gRPC.

    python bench/watch.py --watchers 400 --json

One launcher makes pairs of calls, a durable Allocate and a durable Release, one after the other, while `--watchers`
streams in another process follow every change; then the same without them, by turns, so that what else the machine does
meets both alike. `--singly` has them take one event a message, as clients did before there were batches. `added_ms` is
by how much the median of a pair is longer with them; the bar is 10 ms with 400. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from bench.lib.pool import Process, coordinator, declare, declared_nodes
from tests.identity import insecure_channel


async def pairs_ms(stub: leases_pb2_grpc.LeaseServiceAsyncStub, count: int) -> list[float]:
    """How long each of so many pairs of calls took."""
    took = []
    request = types_pb2.LeaseRequest(gpu="0.1,1Gi", tenant="bench")
    for _ in range(count):
        began = time.perf_counter()
        lease = (await stub.Allocate(leases_pb2.AllocateRequest(request=request))).lease
        await stub.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id))
        took.append(1000 * (time.perf_counter() - began))
    return took


async def watch(address: str, watchers: int, *, batches: bool) -> None:
    """Follow everything on so many streams over a few connections, until it is killed."""
    channels = [insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(1 + watchers // 100)]

    async def follow(number: int) -> None:
        stub = leases_pb2_grpc.LeaseServiceStub(channels[number % len(channels)])
        events: Any = stub.Watch(leases_pb2.WatchRequest(batches=batches))
        await events.read()
        ready.release()
        while await events.read() is not grpc.aio.EOF:
            pass

    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(follow(number)) for number in range(watchers)]
    for _ in tasks:
        await ready.acquire()
    print("ready", flush=True)
    await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def watched(address: str, watchers: int, *, singly: bool) -> AsyncIterator[None]:
    """So many watchers in another process."""
    arguments = [address, str(watchers), *(["--singly"] if singly else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--watch",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise RuntimeError("the watchers did not come up")
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def measure(process: Process, options: argparse.Namespace) -> dict[str, Any]:
    """Both, by turns."""
    await declare(process.address, declared_nodes(10, 8))
    alone: list[float] = []
    among: list[float] = []
    async with insecure_channel(process.address) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        await pairs_ms(stub, options.pairs)
        for _ in range(options.rounds):
            alone += await pairs_ms(stub, options.pairs)
            async with watched(process.address, options.watchers, singly=options.singly):
                await pairs_ms(stub, options.pairs // 4)
                among += await pairs_ms(stub, options.pairs)
    return {
        "watchers": options.watchers,
        "singly": options.singly,
        "alone_ms": round(statistics.median(alone), 2),
        "among_watchers_ms": round(statistics.median(among), 2),
        "added_ms": round(statistics.median(among) - statistics.median(alone), 2),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of calls a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--singly", action="store_true", help="one event a message")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--watch", nargs=2, metavar=("ADDRESS", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        asyncio.run(watch(options.watch[0], int(options.watch[1]), batches=not options.singly))
        return
    with coordinator("--journal", "memory:") as process:
        found = asyncio.run(measure(process, options))
    if not options.json:
        for name, value in found.items():
            print(f"{name:20} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

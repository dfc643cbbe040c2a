"""How long a read takes beside work, and beside strangers and garbage that come on and on.

    python bench/reads.py --json

A launcher asks for batches of 100 leases and ends them as fast as they are carried out; then, without it, 64 calls of
somebody without a token that counts follow on one another; then 64 that are no calls: bytes that are no message, with a
token and without, to methods of each kind, and names that are no method's. Meanwhile one lease is read every few
milliseconds, by turns at this coordinator and at one that has nothing to do. The ratios of the two hold on a busy
machine, too.

| field | is | bar |
|---|---|---|
| `work_p50_ms`, `work_p99_ms` | what a read takes beside batches | |
| `work_p50_ratio`, `work_p99_ratio` | to what it takes at the other coordinator | 2 (p99) |
| `work_changes_s` | leases begun or ended a second meanwhile | |
| `strangers_p50_ms` … `strangers_p99_ratio` | the same beside strangers | 2 (p99) |
| `strangers_refused_s` | of their calls, a second | |
| `garbage_p50_ms` … `garbage_refused_s` | both of what is no call | 2 (p99) |

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.client import AsyncPool, Lease, Request
from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from bench.lib.pool import coordinator, declare, declared_nodes, percentile
from tests.identity import ADMIN_TOKEN, with_token

BATCH = 100
AT_A_TIME = 64
PAUSE_S = 0.003
SETTLES_S = 2.0
WRONG_TOKEN = f"alq_{'0' * 12}_{'1' * 64}"
Others = Callable[[str, "Synchronized[int]"], None]


def launch(address: str, done: Synchronized[int]) -> None:
    """Batches, for ever. Counts leases begun and ended."""

    async def run() -> None:
        async with AsyncPool(address, token=ADMIN_TOKEN) as pool:
            while True:
                asked = await pool.allocate_batch([Request("0.25", detached=True)] * BATCH)
                await pool.release_batch([lease.lease_id for lease in asked if isinstance(lease, Lease)])
                done.value += 2 * BATCH

    asyncio.run(run())


def call_in_vain(address: str, done: Synchronized[int]) -> None:
    """Calls of a stranger, for ever. Counts refusals."""

    async def one(leases: Any) -> None:  # noqa: ANN401 - a stub
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await leases.Get(leases_pb2.GetRequest(), metadata=[("authorization", f"Bearer {WRONG_TOKEN}")])
            done.value += 1

    async def run() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.gather(*(one(leases_pb2_grpc.LeaseServiceStub(channel)) for _ in range(AT_A_TIME)))

    asyncio.run(run())


_NO_MESSAGE = b"\x0a\xff\xff\xff\xff\x0f"
_NO_CALLS = [
    ("/aliquot.v1.LeaseService/Get", True),
    ("/aliquot.v1.LeaseService/Watch", True),
    ("/aliquot.v1.LeaseService/Nothing", True),
    ("/aliquot.v1.AgentService/Session", False),
    ("/aliquot.v1.AccessService/Login", False),
    ("/grpc.health.v1.Health/Check", False),
    ("/another.Service/Method", False),
]


def call_nothing(address: str, done: Synchronized[int]) -> None:
    """What is no call, for ever. Counts refusals."""

    async def one(channel: Any, path: str, *, known: bool) -> None:  # noqa: ANN401 - any bytes go
        metadata = [("authorization", f"Bearer {ADMIN_TOKEN}")] if known else []
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(path)(_NO_MESSAGE, metadata=metadata)
            done.value += 1

    async def run() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            sent = itertools.islice(itertools.cycle(_NO_CALLS), AT_A_TIME)
            await asyncio.gather(*(one(channel, path, known=known) for path, known in sent))

    asyncio.run(run())


class Reader:
    """Reads one lease of a coordinator."""

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self._leases = leases_pb2_grpc.LeaseServiceStub(channel)
        asyncio.run(declare(address, declared_nodes(1_000, 8)))
        request = types_pb2.LeaseRequest(gpu="0.1,1Gi", detached=True)
        made = self._leases.Allocate(leases_pb2.AllocateRequest(request=request)).lease
        self._asked = leases_pb2.GetRequest(lease_id=made.lease_id)
        self.took_ms: list[float] = []

    def read(self) -> None:
        """Once."""
        began = time.perf_counter()
        self._leases.Get(self._asked)
        self.took_ms.append(1000 * (time.perf_counter() - began))


@contextlib.contextmanager
def beside(others: Others, address: str) -> Iterator[Synchronized[int]]:
    """They do it in a process of their own. Gives what they count."""
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    process = context.Process(target=others, args=(address, done), daemon=True)
    process.start()
    try:
        while not done.value:
            time.sleep(0.01)
        time.sleep(SETTLES_S)
        yield done
    finally:
        process.kill()
        process.join()


def measure(busy: Reader, idle: Reader, others: Others, address: str, seconds: float) -> dict[str, float]:
    """`p50_ms` and so on, and how many a second the others did."""
    busy.took_ms.clear()
    idle.took_ms.clear()
    with beside(others, address) as done:
        before, began = done.value, time.monotonic()
        while time.monotonic() - began < seconds:
            for reader in (busy, idle):
                reader.read()
            time.sleep(PAUSE_S)
        found: dict[str, float] = {"per_s": round((done.value - before) / (time.monotonic() - began))}
    for part in (50, 99):
        took_ms, spared_ms = (percentile(sorted(reader.took_ms), part / 100) for reader in (busy, idle))
        found |= {f"p{part}_ms": round(took_ms, 2), f"p{part}_ratio": round(took_ms / spared_ms, 2)}
    return found


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a measurement")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(coordinator("--journal", "memory:")) for _ in range(2)]
        channels = [stack.enter_context(with_token(grpc.insecure_channel(pool.address))) for pool in pools]
        busy, idle = (Reader(pool.address, channel) for pool, channel in zip(pools, channels, strict=True))
        work = measure(busy, idle, launch, pools[0].address, options.seconds)
        strangers = measure(busy, idle, call_in_vain, pools[0].address, options.seconds)
        garbage = measure(busy, idle, call_nothing, pools[0].address, options.seconds)
    found = {"work_changes_s": work.pop("per_s")}
    refused = {"strangers": strangers, "garbage": garbage}
    found |= {f"{name}_refused_s": those.pop("per_s") for name, those in refused.items()}
    for name, those in {"work": work, **refused}.items():
        found |= {f"{name}_{figure}": value for figure, value in those.items()}
    found["load"] = round(os.getloadavg()[0], 1)
    if not options.json:
        for name, value in found.items():
            print(f"{name:30} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

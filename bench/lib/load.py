"""Launchers in a process of their own: each allocates and releases, one lease after the other."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from bench.lib.pool import channel_to, percentile


class Load:
    """The callers, and their measurements."""

    def __init__(self, stub: leases_pb2_grpc.LeaseServiceAsyncStub, arguments: argparse.Namespace) -> None:
        self._stub = stub
        self._body = types_pb2.LeaseRequest(gpu=arguments.gpu, tenant="bench", detached=True)
        self._wait = leases_pb2.WaitUntil.Value(f"WAIT_UNTIL_{arguments.until}")
        self._wanted = types_pb2.LEASE_STATE_ACTIVE if arguments.until == "ACTIVE" else types_pb2.LEASE_STATE_GRANTED
        self._batch = arguments.batch
        self._keys = 0
        self.latencies_ms: list[float] = []
        self.leases = 0
        self.failed = 0
        self.all_leases = 0
        """Including those of the warm-up."""

    async def caller(self, end: float) -> None:
        """One launcher, until the time is over."""
        while time.perf_counter() < end:
            if self._batch:
                await self._many()
            else:
                await self._one()

    async def _one(self) -> None:
        self._keys += 1
        request = leases_pb2.AllocateRequest(
            request=self._body, idempotency_key=f"bench-{os.getpid()}-{self._keys}", wait_until=self._wait
        )
        started = time.perf_counter()
        answer = await self._stub.Allocate(request)
        self.latencies_ms.append((time.perf_counter() - started) * 1e3)
        await self._stub.Release(leases_pb2.ReleaseRequest(lease_id=answer.lease.lease_id))
        self.all_leases += 1
        if answer.lease.state == self._wanted:
            self.leases += 1
        else:
            self.failed += 1

    async def _many(self) -> None:
        item = leases_pb2.AllocateRequest(request=self._body)
        request = leases_pb2.AllocateBatchRequest(items=[item] * self._batch)
        started = time.perf_counter()
        answer = await self._stub.AllocateBatch(request)
        self.latencies_ms.append((time.perf_counter() - started) * 1e3)
        ids = [result.lease.lease_id for result in answer.results if result.WhichOneof("result") == "lease"]
        await self._stub.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids))
        self.leases += len(ids)
        self.all_leases += len(ids)
        self.failed += self._batch - len(ids)


async def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Warm up, then measure."""
    async with channel_to(arguments.address, arguments.ca) as channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)
        load = Load(stub, arguments)
        warm_end = time.perf_counter() + arguments.warm_up
        await asyncio.gather(*(load.caller(warm_end) for _ in range(arguments.callers)))
        load.latencies_ms.clear()
        load.leases = load.failed = 0
        started = time.perf_counter()
        await asyncio.gather(*(load.caller(started + arguments.seconds) for _ in range(arguments.callers)))
        took_s = time.perf_counter() - started
    latencies = sorted(load.latencies_ms)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "leases_per_s": load.leases / took_s,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "failed": load.failed,
        "all_leases": load.all_leases,
        "client_cpu_cores": (usage.ru_utime + usage.ru_stime) / (took_s + arguments.warm_up),
        "took_s": took_s,
    }


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=1)
    parser.add_argument("--gpu", default="0.25(A100),10Gi")
    parser.add_argument("--until", default="GRANTED", choices=["QUEUED", "GRANTED", "ACTIVE"])
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--ca", type=Path, help="speak TLS with whom this authority certified")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()

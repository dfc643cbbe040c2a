"""A client that behaves, in a process of its own: what it sees of a coordinator that others attack.

`python -m tests.fuzz.bystander ADDRESS SECONDS`; the last line is JSON.
"""

from __future__ import annotations

import json
import sys
import time

import grpc

from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from tests.identity import with_token

WITHIN_S = 20.0
NAME = "bystander"
PAUSE_S = 0.02


def behave(address: str, seconds: float) -> dict[str, float | list[str]]:
    """Ask for a part, look at it, give it back."""
    took_ms: list[float] = []
    problems: list[str] = []
    until = time.monotonic() + seconds
    with with_token(grpc.insecure_channel(address)) as channel:
        leases = leases_pb2_grpc.LeaseServiceStub(channel)
        request = types_pb2.LeaseRequest(gpu="0.1,1Gi", tenant=NAME, queue=NAME, pool=NAME)
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                lease = leases.Allocate(leases_pb2.AllocateRequest(request=request), timeout=WITHIN_S).lease
                leases.Get(leases_pb2.GetRequest(lease_id=lease.lease_id), timeout=WITHIN_S)
                leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id), timeout=WITHIN_S)
            except grpc.RpcError as error:
                problems.append(f"{error.code().name}: {error.details()}")
            took_ms.append((time.monotonic() - began) * 1000)
            time.sleep(PAUSE_S)
    took_ms.sort()
    return {
        "rounds": len(took_ms),
        "p50_ms": took_ms[len(took_ms) // 2],
        "p99_ms": took_ms[len(took_ms) * 99 // 100],
        "problems": problems,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(behave(sys.argv[1], float(sys.argv[2]))) + "\n")

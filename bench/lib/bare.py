"""A gRPC server that does nothing: the baseline for measurements over gRPC.

It answers Allocate, Release and Get always with the same message, of the size of a real lease, on the same event loop
and with the same server options as the coordinator. Its rate is the most that gRPC for Python gives on this machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from typing import Any

import grpc
import grpc.aio
import uvloop

from aliquot.common.limits import GIB
from aliquot.coordinator.rpc.server import RPCS_MAX, SERVER_OPTIONS
from aliquot.coordinator.wire.calls import Context
from aliquot.v1 import leases_pb2, types_pb2

_LEASE = types_pb2.Lease(
    lease_id="l-0000000000000",
    state=types_pb2.LEASE_STATE_GRANTED,
    request=types_pb2.LeaseRequest(
        spec=types_pb2.GpuSpec(
            count=1, share_milli=250, memory_bytes=10 * GIB, models=[types_pb2.ModelSet(any_of=["A100", "A100-80"])]
        ),
        tenant="bench",
        grace_s=30,
        detached=True,
    ),
    slices=[
        types_pb2.Slice(
            slice_id="l-0000000000000.1.0",
            node_id="bench-00000",
            node_name="bench-00000",
            device_uuid="bench-00000-0",
            device_model="A100-80",
            share_milli=250,
            memory_bytes=10 * GIB,
            state=types_pb2.SLICE_STATE_GRANTED,
            lease_epoch=1,
            since_ms=1_800_000_000_000,
        )
    ],
    lease_epoch=1,
    created_ms=1_800_000_000_000,
    granted_ms=1_800_000_000_000,
    secret="0" * 64,
    seq=1_000_000,
)
_ALLOCATED = leases_pb2.AllocateResponse(lease=_LEASE)
_RELEASED = leases_pb2.ReleaseResponse(lease=_LEASE)


async def allocate(request: leases_pb2.AllocateRequest, context: Context) -> leases_pb2.AllocateResponse:
    """The same lease for everybody."""
    return _ALLOCATED


async def release(request: leases_pb2.ReleaseRequest, context: Context) -> leases_pb2.ReleaseResponse:
    """The same answer for everybody."""
    return _RELEASED


async def get(request: leases_pb2.GetRequest, context: Context) -> types_pb2.Lease:
    """The same lease, whichever is asked for."""
    return _LEASE


def service() -> grpc.GenericRpcHandler:
    """Methods that do nothing."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Allocate": grpc.unary_unary_rpc_method_handler(
            allocate, leases_pb2.AllocateRequest.FromString, leases_pb2.AllocateResponse.SerializeToString
        ),
        "Release": grpc.unary_unary_rpc_method_handler(
            release, leases_pb2.ReleaseRequest.FromString, leases_pb2.ReleaseResponse.SerializeToString
        ),
        "Get": grpc.unary_unary_rpc_method_handler(
            get, leases_pb2.GetRequest.FromString, types_pb2.Lease.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler("aliquot.v1.LeaseService", methods)


async def run() -> None:
    """Serve until told to stop."""
    server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=RPCS_MAX)
    server.add_generic_rpc_handlers((service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    gc.freeze()
    print("ready " + json.dumps({"address": f"127.0.0.1:{port}", "metrics": ""}), flush=True)
    await stopped.wait()
    await server.stop(1)


if __name__ == "__main__":
    uvloop.run(run())

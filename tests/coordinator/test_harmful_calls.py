"""Calls that mean harm: what is kept of one that lasts is bounded, whatever was sent with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from aliquot.coordinator.agents.authority import Authority
from aliquot.coordinator.rpc import server
from aliquot.remote.wire import options as remote_options
from aliquot.v1 import leases_pb2
from tests.coordinator.pool import allocation, running

UNKNOWN_FIELD = b"\xfa\x3f\x80\x80\xc0\x01" + bytes(3 << 20)
"""Field 1023 with 3 MiB in it, which is kept with the message although nobody reads it."""


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/aliquot.v1.LeaseService/Watch", b""),
        (
            "/aliquot.v1.LeaseService/Watch",
            leases_pb2.WatchRequest(lease_ids=["x" * 3000] * 1000).SerializeToString(),
        ),
        ("/aliquot.v1.LeaseService/Allocate", allocation("1", wait_timeout_ms=3_600_000).SerializeToString()),
        ("/aliquot.v1.LeaseService/Release", b""),
        ("/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()),
        ("/grpc.health.v1.Health/Watch", b""),
    ],
)
async def test_a_call_that_may_last_is_not_kept_with_more_than_it_needs(path: str, raw: bytes) -> None:
    async with running() as pool:
        channel: Any = pool.channel
        kind = channel.unary_stream if path.endswith("Watch") else channel.unary_unary
        call = kind(path)(raw if len(raw) > 4096 else raw + UNKNOWN_FIELD, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await (call.read() if path.endswith("Watch") else call)
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "bytes; at most" in str(refusal.value.details())


@pytest.mark.parametrize(
    "path", ["", "nothing", "/", "/x", "//", "/aliquot.v1.AdminService", "/aliquot.v1.AdminService/Nothing"]
)
async def test_what_names_no_method_is_answered_so_and_leaves_no_line(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as pool:
        channel: Any = pool.channel
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_unary(path)(b"", timeout=60)
        assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "options", [server.SERVER_OPTIONS, remote_options.SERVER_OPTIONS], ids=["coordinator", "remote"]
)
async def test_who_never_shakes_hands_is_put_out(options: Sequence[tuple[str, int]]) -> None:
    """By itself gRPC holds the socket for two minutes."""
    pair = Authority(bytes(32)).serve_as(["localhost"], time.time_ns() // 1_000_000)
    listening = grpc.aio.server(options=options)
    credentials = grpc.ssl_server_credentials([(pair.key_pem, pair.chain_pem)])
    port = listening.add_secure_port("127.0.0.1:0", credentials)
    await listening.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
    finally:
        await listening.stop(None)

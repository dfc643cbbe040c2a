"""What comes from outside is checked: each wrong field is named, and nothing happens."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from aliquot.coordinator.settings.config import LimitSettings
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import (
    allocation,
    declared,
    error_info,
    fields_of,
    reason_of,
    running,
    settings_for,
)

HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"priority": 1001}, "request.priority"),
        ({"priority": -1001}, "request.priority"),
        ({"gang_size": 4097}, "request.gang_size"),
        ({"ttl_s": 8 * 24 * 3600}, "request.ttl_s"),
        ({"ttl_s": 60, "detached": True}, "request.ttl_s"),
        ({"grace_s": HUGE}, "request.grace_s"),
        ({"time_limit_s": HUGE}, "request.time_limit_s"),
        ({"cpu_milli": HUGE}, "request.cpu_milli"),
        ({"host_memory_bytes": HUGE}, "request.host_memory_bytes"),
        ({"tenant": "a b"}, "request.tenant"),
        ({"tenant": "x" * 129}, "request.tenant"),
        ({"queue": "/"}, "request.queue"),
        ({"pool": "-"}, "request.pool"),
        ({"name": "two\nlines"}, "request.name"),
        ({"name": "x" * 129}, "request.name"),
        ({"labels": {"bad key": "v"}}, "request.labels['bad key']"),
        ({"node_selector": {"k": "v v"}}, "request.node_selector['k']"),
        ({"node_ids": ["no good"]}, "request.node_ids[0]"),
        ({"min_count": 2}, "request.min_count"),
        ({"gang_size": 2, "max_count": 1}, "request.max_count"),
        ({"max_count": 9_000}, "request.max_count"),
        ({"min_tier": 99}, "request.min_tier"),
        ({"topology": 99}, "request.topology"),
        ({"stop_signal": "KILL"}, "request.stop_signal"),
        ({"stop_signal": "10"}, "request.stop_signal"),
    ],
)
async def test_fields_out_of_range_are_named(fields: dict[str, Any], path: str) -> None:
    async with running() as pool:
        await pool.declare(1)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.allocate("0.5", **fields)
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(refusal.value) == "INVALID_FIELD"
        assert fields_of(refusal.value) == [path]


@pytest.mark.parametrize("text", ["", "0", "-1", "NaN", "inf", "1e9", "1.5", "0.5,", "8GB", "x" * 300, "0.5(A100"])
async def test_text_that_is_no_request_is_refused(text: str) -> None:
    async with running() as pool:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.allocate(text)
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(refusal.value) == "REQUEST_SYNTAX"
        assert fields_of(refusal.value) == ["request.gpu"]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (types_pb2.GpuSpec(), "request.spec.share_milli"),
        (types_pb2.GpuSpec(share_milli=1001), "request.spec.share_milli"),
        (types_pb2.GpuSpec(memory_bytes=HUGE), "request.spec.memory_bytes"),
        (types_pb2.GpuSpec(share_milli=1, count=65), "request.spec.count"),
        (types_pb2.GpuSpec(share_milli=1, vendor="acme"), "request.spec.vendor"),
        (types_pb2.GpuSpec(share_milli=1, vendors=["amd", "acme"]), "request.spec.vendors"),
        (types_pb2.GpuSpec(share_milli=1, vendors=["amd"] * 33), "request.spec.vendors"),
        (
            types_pb2.GpuSpec(share_milli=1, models=[types_pb2.ModelSet(any_of=["A"] * 33)]),
            "request.spec.models[0].any_of",
        ),
        (types_pb2.GpuSpec(share_milli=1, models=[types_pb2.ModelSet()] * 33), "request.spec.models"),
        (types_pb2.GpuSpec(mig_profile="huge"), "request.spec.mig_profile"),
    ],
)
async def test_a_parsed_form_is_checked_as_the_text_is(spec: types_pb2.GpuSpec, path: str) -> None:
    async with running() as pool:
        request = leases_pb2.AllocateRequest(request=types_pb2.LeaseRequest(spec=spec, tenant="t"))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.leases.Allocate(request)
        assert fields_of(refusal.value) == [path]


async def test_nothing_asked_for_says_what_to_write() -> None:
    async with running() as pool:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.leases.Allocate(leases_pb2.AllocateRequest())
        assert fields_of(refusal.value) == ["request.gpu"]


async def test_calls_are_bounded() -> None:
    async with running() as pool:
        for call in (
            pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=[allocation()] * 257)),
            pool.leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=["l-x"] * 257)),
            pool.leases.Allocate(allocation(wait_timeout_ms=3_600_001)),
            pool.leases.Allocate(allocation(idempotency_key="k" * 129)),
            pool.nodes.DeclareNodes(
                pool_pb2.DeclareNodesRequest(nodes=[types_pb2.Node(node_id=f"n{n}") for n in range(1001)])
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            assert reason_of(refusal.value) == "INVALID_FIELD"


async def test_beyond_the_bound_on_commands_callers_are_told_when_to_come_back() -> None:
    settings = settings_for(limits=LimitSettings(commands_queued_max=4))
    async with running(settings) as pool:
        await pool.declare(1)
        answer = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=[allocation("0.01")] * 10))
        errors = [result.error for result in answer.results if result.WhichOneof("result") == "error"]
        assert {error_info(error).reason for error in errors} == {"OVERLOADED"}
        assert {error.code for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
        retry = error_details_pb2.RetryInfo()
        assert all(any(detail.Unpack(retry) for detail in error.details) for error in errors)
        assert retry.retry_delay.ToMilliseconds() > 0
        assert len(errors) == 6
        assert (await pool.allocate("0.01")).slices


async def test_messages_too_large_or_undecodable_are_refused() -> None:
    async with running() as pool:
        send: Any = pool.channel.unary_unary("/aliquot.v1.LeaseService/Allocate")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await send(bytes(5 << 20))
        assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await pool.declare(1)
        assert (await pool.allocate("1")).slices


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x0a\xff", b"\x08" + b"\xff" * 1000])
async def test_what_can_not_be_decoded_is_an_invalid_argument_and_no_defect(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as pool:
        service = "/aliquot.v1.LeaseService/"
        channel: Any = pool.channel
        calls: list[Any] = [
            channel.unary_unary(service + "Allocate")(sent),
            channel.unary_unary("/aliquot.v1.AdminService/Apply")(sent),
            channel.unary_stream(service + "Watch")(sent).read(),
            channel.stream_stream(service + "KeepAlive")(iter([sent])).read(),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert fields_of(refusal.value) == ["message"]
        assert not caplog.records


@pytest.mark.parametrize(
    ("node", "path"),
    [
        (types_pb2.Node(), "nodes[0].node_id"),
        (types_pb2.Node(node_id="a b"), "nodes[0].node_id"),
        (types_pb2.Node(node_id="n", devices=[types_pb2.Device()]), "nodes[0].devices[0].model"),
        (types_pb2.Node(node_id="n", devices=[types_pb2.Device(model="X")]), "nodes[0].devices[0].memory_total_bytes"),
        (
            types_pb2.Node(node_id="n", devices=[types_pb2.Device(model="X", memory_total_bytes=HUGE)]),
            "nodes[0].devices[0].memory_total_bytes",
        ),
        (
            types_pb2.Node(node_id="n", devices=[types_pb2.Device(model="T4", memory_reserved_bytes=HUGE)]),
            "nodes[0].devices[0].memory_reserved_bytes",
        ),
        (declared("n", 257), "nodes[0].devices"),
    ],
)
async def test_nodes_are_checked_before_any_is_declared(node: types_pb2.Node, path: str) -> None:
    async with running() as pool:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[node, declared("good")]))
        assert fields_of(refusal.value) == [path]
        assert not (await pool.nodes.ListNodes(pool_pb2.ListNodesRequest())).nodes


async def test_two_nodes_cannot_share_a_name_or_a_device() -> None:
    async with running() as pool:
        one = types_pb2.Node(node_id="n1", name="same", devices=[types_pb2.Device(uuid="GPU-1", model="T4")])
        await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[one]))
        same_name = types_pb2.Node(node_id="n2", name="same")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[same_name]))
        assert reason_of(refusal.value) == "NODE_NAME_TAKEN"
        same_device = types_pb2.Node(node_id="n2", devices=[types_pb2.Device(uuid="GPU-1", model="T4")])
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[same_device]))
        assert reason_of(refusal.value) == "DEVICE_CLAIMED"


async def test_only_declared_tenants_are_known_where_the_settings_say_so() -> None:
    async with running(settings_for(limits=LimitSettings(strict_tenants=True))) as pool:
        await pool.declare(1)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await pool.allocate("0.1,1Gi", tenant="stranger")
        assert reason_of(raised.value) == "TENANT_NOT_FOUND"

"""From messages to values: every field arrives, the unknown stays unknown, and newer words do no harm."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot import client as values
from aliquot.client import Lease, LeaseState, NodeState, Request, Serve, Tier, Topology, local
from aliquot.client import _from_proto as from_proto
from aliquot.client._asking import describe_ask, to_proto
from aliquot.client._environment import member_slices, plain_environment
from aliquot.client._messages import read
from aliquot.common.request import GpuRequest, format_request, parse_request
from aliquot.v1 import local_pb2, pool_pb2, types_pb2

OF_ITS_REQUEST = {
    "gpu",
    "tenant",
    "queue",
    "pool",
    "name",
    "priority",
    "gang_size",
    "ttl_s",
    "detached",
    "labels",
    "min_count",
    "max_count",
    "time_limit_s",
}
"""What a `Lease` shows of its request, which is a message of its own in the contract."""

FOLLOWS = {"ends_ms"}
"""What follows from its other fields."""
OLDER_NAMES = {"nvlink_island"}
"""What has another name in the contract now."""


def test_every_field_of_the_contract_reaches_the_user() -> None:
    """A field added to the contract must be shown, or left out on purpose."""
    sent = {field.name for field in types_pb2.Lease.DESCRIPTOR.fields} - {"request"}
    assert sent == {field.name for field in dataclasses.fields(Lease)} - OF_ITS_REQUEST - FOLLOWS
    assert {field.name for field in types_pb2.LeaseRequest.DESCRIPTOR.fields} >= OF_ITS_REQUEST
    asked = {field.name for field in types_pb2.LeaseRequest.DESCRIPTOR.fields} - {"spec"}
    assert asked == {field.name for field in dataclasses.fields(Request)}


@pytest.mark.parametrize(
    ("kind", "message", "left_out"),
    [
        (values.Explanation, types_pb2.Explanation, set()),
        (values.Missing, types_pb2.Missing, set()),
        (values.Slice, types_pb2.Slice, {"lease_epoch"}),
        (values.Device, types_pb2.Device, set()),
        (values.Node, types_pb2.Node, {"session_epoch", "care"}),
        (values.Telemetry, types_pb2.DeviceTelemetry, set()),
        (values.Closure, types_pb2.NodeClosure, set()),
        (values.MigCard, types_pb2.MigCard, {"cut"}),
        (values.MigPart, types_pb2.MigPart, set()),
        (values.MigProfile, types_pb2.MigProfile, set()),
        (values.Status, pool_pb2.Status, set()),
        (values.PoolTotals, pool_pb2.PoolTotals, set()),
        (values.TenantTotals, pool_pb2.TenantTotals, set()),
        (local.AgentInfo, local_pb2.LocalInfo, set()),
        (local.Attachment, local_pb2.AttachResponse, set()),
        (local.LocalSlice, local_pb2.LocalSlice, set()),
        (local.EnforcementAct, local_pb2.LocalAct, set()),
    ],
)
def test_every_field_of_other_messages_does_too(kind: Any, message: Any, left_out: set[str]) -> None:
    assert {field.name for field in message.DESCRIPTOR.fields} - left_out == {
        field.name for field in dataclasses.fields(kind)
    } - OLDER_NAMES
    assert isinstance(read(message(), kind), kind)


def test_absent_is_unknown_and_never_zero() -> None:
    telemetry = from_proto.device_of(
        types_pb2.Device(telemetry=types_pb2.DeviceTelemetry(gpu_utilisation_percent=0))
    ).telemetry
    assert (telemetry.gpu_utilisation_percent, telemetry.temperature_c) == (0, None)
    device = from_proto.device_of(types_pb2.Device(uuid="GPU-1"))
    assert (device.numa_node, device.fabric_island, device.telemetry.memory_used_bytes) == (None, None, None)


def test_words_of_a_newer_coordinator() -> None:
    message = types_pb2.Lease(lease_id="l-1")
    message.ParseFromString(message.SerializeToString() + b"\x10\x63")
    assert from_proto.lease_of(message).state is LeaseState.UNSPECIFIED
    assert from_proto.node_of(types_pb2.Node()).state is NodeState.UNSPECIFIED
    node = types_pb2.Node(serves=[types_pb2.SERVE_REMOTE])
    node.MergeFromString(b"\xa8\x01\x63")
    assert from_proto.node_of(node).serves == (Serve.REMOTE, Serve.UNSPECIFIED)


@given(
    st.builds(
        Request,
        gpu=st.just("0.5"),
        tenant=st.text(max_size=5),
        priority=st.integers(-1000, 1000),
        gang_size=st.integers(1, 4096),
        min_tier=st.sampled_from(Tier),
        topology=st.sampled_from(Topology),
        labels=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        node_ids=st.lists(st.text(max_size=3), max_size=2),
        detached=st.booleans(),
        ttl_s=st.integers(0, 600),
    )
)
def test_requests_travel_whole(request: Request) -> None:
    sent = types_pb2.LeaseRequest.FromString(to_proto(request).SerializeToString())
    assert (sent.tenant, sent.priority, sent.gang_size or 1) == (request.tenant, request.priority, request.gang_size)
    assert types_pb2.Tier.Name(sent.min_tier) == f"TIER_{request.min_tier}"
    assert types_pb2.Topology.Name(sent.topology) == f"TOPOLOGY_{request.topology}"
    assert (dict(sent.labels), list(sent.node_ids)) == (request.labels, request.node_ids)
    assert (sent.detached, sent.ttl_s) == (request.detached, request.ttl_s)


def test_resolved_requests_read_as_people_write_them() -> None:
    for text in ("0.25(A100),10Gi", "2", "2x0.5(A100|H100),20Gi", "1(H100>A100)", "1g.10gb", "10Gi", "2(amd)"):
        parsed: GpuRequest = parse_request(text)
        message = types_pb2.LeaseRequest()
        message.spec.count = parsed.count
        message.spec.share_milli = parsed.share_milli or 0
        message.spec.memory_bytes = parsed.memory_bytes or 0
        message.spec.vendor = parsed.vendor or ""
        message.spec.mig_profile = parsed.mig_profile or ""
        for names in parsed.models:
            # As coordinators resolve them: a family stands beside its members.
            message.spec.models.add(any_of=[*names, *(["A100-40", "A100-80"] if "A100" in names else [])])
        assert parse_request(describe_ask(message)) == parsed
        assert describe_ask(message) == format_request(parsed)
    assert describe_ask(types_pb2.LeaseRequest(gpu="0.5")) == "0.5"
    assert describe_ask(types_pb2.LeaseRequest(spec=types_pb2.GpuSpec(share_milli=5000))) == ""


def test_the_plain_variables_of_a_gang_member() -> None:
    message = types_pb2.Lease(lease_id="l-1")
    for member, uuid in ((0, "GPU-a"), (1, "GPU-b"), (1, "GPU-c")):
        message.slices.add(member=member, device_uuid=uuid, device_model="A100-40", share_milli=500, memory_bytes=7)
    lease = from_proto.lease_of(message)
    assert [part.device_uuid for part in member_slices(lease, 1)] == ["GPU-b", "GPU-c"]
    variables = plain_environment(lease, 1)
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"
    assert (variables["ALIQUOT_SHARE_MILLI"], variables["ALIQUOT_MEMORY_BYTES"]) == ("500,500", "7,7")
    assert "CUDA_VISIBLE_DEVICES" not in plain_environment(lease, 9)


def test_amd_devices_have_their_own_variable() -> None:
    message = types_pb2.Lease(lease_id="l-1")
    message.slices.add(device_uuid="GPU-a", device_model="MI300X", share_milli=1000)
    variables = plain_environment(from_proto.lease_of(message), 0)
    assert variables["ROCR_VISIBLE_DEVICES"] == "GPU-a"
    assert "CUDA_VISIBLE_DEVICES" not in variables

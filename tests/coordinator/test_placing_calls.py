"""`Fits` and `GrantOn` over the wire: nodes by id or name, reasons that a program can read, and bounds."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, declared, error_info, reason_of, running, status_of
from tests.coordinator.test_sessions import ready

Place = leases_pb2.MemberPlace


def asked(gpu: str = "1", **fields: Any) -> types_pb2.LeaseRequest:
    return types_pb2.LeaseRequest(gpu=gpu, tenant="team", **fields)


async def fits(pool: Pool, gpu: str, *node_ids: str, **fields: Any) -> list[pool_pb2.NodeFit]:
    request = pool_pb2.FitsRequest(request=asked(gpu, **fields), node_ids=node_ids)
    return list((await pool.nodes.Fits(request)).nodes)


async def grant_on(pool: Pool, gpu: str, *places: leases_pb2.MemberPlace, **fields: Any) -> types_pb2.Lease:
    request = leases_pb2.GrantOnRequest(request=asked(gpu), places=places, **fields)
    return (await pool.leases.GrantOn(request)).lease


async def named(pool: Pool) -> None:
    nodes = [declared("n-1", 2), declared("n-2", 1, "T4")]
    for node, name in zip(nodes, ("one", "two"), strict=True):
        node.name = name
    await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=nodes))


async def test_nodes_are_compared_by_id_or_name_and_called_as_they_were_asked_about() -> None:
    async with running() as pool:
        await named(pool)
        found = await fits(pool, "0.5(A100)", "two", "one", "n-1", "none")
        assert [fit.node_id for fit in found] == ["two", "one", "n-1", "none"]
        assert [fit.reason for fit in found] == ["OTHER_MODEL", "FITS", "FITS", "NODE_UNKNOWN"]
        assert [fit.score for fit in found] == [0, 1, 1, 0]
        assert "A100" in found[0].detail
        assert [fit.node_id for fit in await fits(pool, "0.5")] == ["n-1", "n-2"]


async def test_a_lease_is_granted_where_somebody_decided_and_only_there() -> None:
    async with running() as pool, agents(Agent(pool.address, "n1"), Agent(pool.address, "n2")):
        await ready(pool, "n1")
        await ready(pool, "n2")
        (device,) = (await pool.node("n2")).devices
        lease = await grant_on(
            pool, "0.5", Place(node_id="n2", device_uuids=[device.uuid]), wait_until=leases_pb2.WAIT_UNTIL_ACTIVE
        )
        assert lease.state == types_pb2.LEASE_STATE_ACTIVE
        assert lease.secret
        assert [piece.device_uuid for piece in lease.slices] == [device.uuid]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await grant_on(pool, "0.75", Place(node_id="n2"))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        info = error_info(status_of(caught.value))
        assert info.reason == "PLACEMENT_REFUSED"
        assert (info.metadata["node"], info.metadata["obstacle"]) == ("n2", "SHARE_HELD")
        assert [fit.reason for fit in await fits(pool, "0.75", "n1", "n2")] == ["FITS", "SHARE_HELD"]


async def test_a_key_stands_for_a_request_and_its_places() -> None:
    async with running() as pool:
        await named(pool)
        first = await grant_on(pool, "0.5", Place(node_id="one"), idempotency_key="k")
        again = await grant_on(pool, "0.5", Place(node_id="one"), idempotency_key="k")
        assert again.lease_id == first.lease_id
        for place in (Place(node_id="two"), Place(node_id="one", device_uuids=[first.slices[0].device_uuid])):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await grant_on(pool, "0.5", place, idempotency_key="k")
            assert reason_of(caught.value) == "IDEMPOTENCY_MISMATCH"


async def test_what_is_out_of_bounds_is_named() -> None:
    async with running() as pool:
        await named(pool)
        calls = [
            (fits(pool, "1", *["n"] * 5001), "5001 nodes"),
            (fits(pool, "1", ""), "1 to 253 characters"),
            (fits(pool, "1", "n" * 300), "1 to 253 characters"),
            (grant_on(pool, "1"), "0 places for 1 members"),
            (grant_on(pool, "1", Place(node_id="")), "1 to 253 characters"),
            (grant_on(pool, "1", *[Place(node_id="n-1")] * 4097), "4097 places"),
            (grant_on(pool, "1", Place(node_id="n-1", device_uuids=["u"] * 65)), "65 devices"),
            (grant_on(pool, "1", Place(node_id="n-1", device_uuids=["u" * 129])), "longer than 128"),
            (grant_on(pool, "1", Place(node_id="n-1"), idempotency_key="k" * 200), "200"),
            (grant_on(pool, "1", Place(node_id="n-1"), wait_until=9), "9"),
        ]
        for call, said in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in str(caught.value.details())


async def test_what_nobody_can_serve_says_so_of_each_node() -> None:
    async with running() as pool, agents(Agent(pool.address, "n1")):
        await ready(pool)
        (found,) = await fits(pool, "1", "n1", serve=types_pb2.SERVE_REMOTE)
        assert found.reason == "SERVE"
        explained = await pool.leases.Explain(
            leases_pb2.ExplainRequest(request=asked("1", serve=types_pb2.SERVE_REMOTE))
        )
        assert [missing.reason for missing in explained.explanation.missing] == ["SERVE"]

"""`aliquot defragment` on the real program: agents end what was moved only after its new place is held."""

from __future__ import annotations

import json

import grpc
import grpc.aio
import pytest

from aliquot.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from tests.command_line import cli
from tests.coordinator.pool import Agent, Pool, agents, eventually, reason_of, running, settings_for
from tests.identity import insecure_channel


async def split(pool: Pool) -> types_pb2.Lease:
    """A small lease alone on one of two devices, room for it on the other, and a mix that wants whole devices."""
    for _ in range(5):
        await pool.release((await pool.allocate("1")).lease_id)
    large = await pool.allocate("0.6,1Gi", movable=True)
    await pool.allocate("0.6,1Gi", movable=True)
    small = await pool.allocate("0.3,1Gi", movable=True)
    assert small.slices[0].node_id == large.slices[0].node_id
    await pool.release(large.lease_id)
    await eventually(lambda: pool.get(large.lease_id), "it ends")
    return small


async def test_a_lease_is_moved_when_told_to_and_runs_on_elsewhere() -> None:
    async with (
        running(settings_for(policy="binpack")) as pool,
        agents(Agent(pool.address, "n1", uuids=("G1",)), Agent(pool.address, "n2", uuids=("G2",))),
    ):
        small = await split(pool)
        before, after = small.slices[0].node_id, ({"n1", "n2"} - {small.slices[0].node_id}).pop()
        code, said, _ = await cli(pool.address, "defragment")
        assert code == 0
        assert said.startswith(f"{small.lease_id} of ")
        assert f" would move from {before} to {after}\n" in said
        assert (await pool.get(small.lease_id)).lease_epoch == small.lease_epoch, "that was a dry run"
        code, said, _ = await cli(pool.address, "defragment", "--apply", "--json")
        document = json.loads(said)
        assert code == 0
        assert document["carried_out"]
        assert document["gained_gpus"] > 0
        assert [move["lease_id"] for move in document["moves"]] == [small.lease_id]

        async def settled() -> bool:
            lease = await pool.get(small.lease_id)
            return lease.state == types_pb2.LEASE_STATE_ACTIVE and lease.lease_epoch > small.lease_epoch

        await eventually(settled, "it runs at its new place")
        moved = await pool.get(small.lease_id)
        assert {piece.node_id for piece in moved.slices if piece.state == types_pb2.SLICE_STATE_ACTIVE} == {after}
        await pool.allocate("1")
        assert "nothing to move" in (await cli(pool.address, "defragment"))[1]


async def test_before_anything_has_arrived_nothing_is_known_to_be_useful() -> None:
    async with running() as pool:
        await pool.declare(2)
        assert "nothing has arrived yet" in (await cli(pool.address, "defragment"))[1]


async def test_the_number_of_moves_in_a_step_is_bounded() -> None:
    async with running() as pool, insecure_channel(pool.address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.Defragment(admin_pb2.DefragmentRequest(moves_max=1_000))
        assert reason_of(refused.value) == "INVALID_FIELD"

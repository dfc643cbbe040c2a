"""A part of a card that a MIG instance serves as well: real coordinator, real agent, simulated cards in both modes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from aliquot import simgpu
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.agent.harness import Node
from tests.coordinator.pool import Pool, allocation, eventually
from tests.enforce.test_repartitioning import active, command, notes, pool_with, profiles, state_is

pytestmark = pytest.mark.root("to cut a card")
ASKED = "0.5(A100-40),10Gi"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Two A100-40: one in MIG mode with no parts yet, one undivided."""
    (tmp_path / "node").mkdir()
    path = tmp_path / "node" / "gpus"
    made = Node(tmp_path / "node", simgpu.create(path, ["A100-40"] * 2, host=str(tmp_path)), path)
    made.scenario.set_mig_mode(0, enabled=True)
    made.environment |= {
        "ALIQUOT_AGENT_ENFORCEMENT_TIERS": "mig,watchdog",
        "ALIQUOT_AGENT_MIG_REPARTITION": "true",
    }
    yield made
    made.close()


async def alloc(pool: Pool, *options: str) -> types_pb2.Lease:
    """A lease that somebody asks for by the command line, and does not wait for."""
    before = {lease.lease_id for lease in await leases(pool)}
    said = await asyncio.to_thread(command, pool, "alloc", ASKED, "--until", "queued", *options)
    (lease,) = [lease for lease in await leases(pool) if lease.lease_id not in before]
    assert lease.lease_id in said
    return lease


async def leases(pool: Pool) -> list[types_pb2.Lease]:
    return list((await pool.leases.List(leases_pb2.ListRequest())).leases)


async def test_either_serves_it_and_a_card_is_cut_when_neither_does(node: Node) -> None:
    async with pool_with(node) as pool:
        first, second = [await active(pool, await alloc(pool, "--or-mig")) for _ in range(2)]
        assert profiles(node) == [""], "there is room on the undivided card"
        assert {lease.slices[0].share_milli for lease in (first, second)} == {500}
        assert first.request.or_mig

        third = await active(pool, await alloc(pool, "--or-mig"))
        assert profiles(node) == ["", "4g.20gb"]
        assert (third.slices[0].share_milli, third.slices[0].tier) == (571, types_pb2.TIER_MIG)
        assert "served by a 4g.20gb, and charged for all of it: 0.571 of the compute" in third.note
        (totals,) = (await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())).pools
        assert totals.leased_share_milli == 500 + 500 + 571

        plain = await alloc(pool)
        fourth = await alloc(pool, "--or-mig")
        assert "may be served as well by a 4g.20gb" in await notes(pool, fourth)
        assert "or_mig" in await asyncio.to_thread(command, pool, "why", plain.lease_id)
        await pool.release(third.lease_id)
        fourth = await active(pool, fourth)
        assert fourth.slices[0].device_uuid == third.slices[0].device_uuid, "who came first wants no instance"
        assert (await pool.get(plain.lease_id)).state == types_pb2.LEASE_STATE_QUEUED
        await pool.release(first.lease_id)
        await eventually(state_is(pool, plain, types_pb2.LEASE_STATE_ACTIVE), "it has the undivided card's half")


async def test_only_parts_of_devices_may_be_served_either_way(node: Node) -> None:
    async with pool_with(node) as pool:
        for gpu in ("1", "2", "1g.5gb"):
            with pytest.raises(grpc.aio.AioRpcError, match="part of a device only") as refused:
                await pool.leases.Allocate(allocation(gpu, or_mig=True))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

"""The agent itself, on simulated GPUs, behind a relay: it needs to know nothing of relays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.v1 import leases_pb2, types_pb2
from tests.agent.harness import Node, closing, make_node
from tests.coordinator.pool import eventually
from tests.relay.test_relaying import ACTIVE, pool_and_relay, states


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from closing(make_node(tmp_path / "node", ("A100-40",)))


async def test_it_holds_slices_through_a_relay_and_over_the_death_of_one(node: Node) -> None:
    async with pool_and_relay("--processes", "2") as (pool, relay):
        await asyncio.to_thread(node.start, relay.address)
        await eventually(lambda: states(pool) == ["READY"], "its node is ready")
        lease = await pool.allocate("0.5,4Gi", wait_until=ACTIVE, detached=True)
        assert lease.slices[0].tier != types_pb2.TIER_UNSPECIFIED
        (session,) = [known.session_epoch for known in pool.coordinator.view.nodes.values()]
        for pid in relay.pids:
            os.kill(pid, signal.SIGKILL)

        def back() -> bool:
            (known,) = pool.coordinator.view.nodes.values()
            return known.session_epoch > session and states(pool) == ["READY"]

        await eventually(back, "it has come back")
        seen = await pool.get(lease.lease_id)
        assert (seen.state, seen.lease_epoch) == (types_pb2.LEASE_STATE_ACTIVE, lease.lease_epoch)
        request = leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True)
        assert (await pool.leases.Release(request)).lease.state == types_pb2.LEASE_STATE_ENDED

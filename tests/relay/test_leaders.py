"""A relay before several coordinators: it follows whoever leads, and its agents need to know only the relay."""

from __future__ import annotations

import asyncio
import signal

import pytest

from aliquot.client import AsyncPool, LeaseState, WaitUntil
from tests.coordinator.pool import eventually
from tests.failover.agents import Agent
from tests.failover.cluster import cluster
from tests.relay.relays import relaying
from tests.relay.test_relaying import at_work

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_agents_behind_a_relay_come_to_the_next_leader(database: str, how: signal.Signals) -> None:
    async with (
        cluster(database, 2, "--relays") as several,
        relaying("--coordinator", ",".join(several.addresses)) as relay,
        AsyncPool(several.addresses, tenant="team") as pool,
    ):
        agents = [Agent([relay.address], number, devices=1) for number in range(20)]
        async with at_work(*agents):
            await eventually(lambda: all(agent.reconciled_epoch for agent in agents), "all are ready")
            leases = await asyncio.gather(*(pool.allocate("1", until=WaitUntil.ACTIVE, detached=True) for _ in agents))
            _, epoch, _ = several.row()
            old = await several.leader()
            old.send(how)
            await several.leader(after_epoch=epoch)
            await eventually(lambda: all(agent.reconciled_epoch > epoch for agent in agents), "all have been told anew")
            held = sorted(slice_id for agent in agents for slice_id in agent.reservations)
            assert held == sorted(lease.slices[0].slice_id for lease in leases)
            for lease in leases:
                assert (await pool.get(lease.lease_id)).state is LeaseState.ACTIVE
                await pool.release(lease.lease_id)
            again = await pool.allocate("1", until=WaitUntil.ACTIVE, detached=True)
            assert again.state is LeaseState.ACTIVE
            assert not [found for agent in agents for found in agent.overcommitted]
            assert await relay.value("aliquot_relay_reconnects") >= 2

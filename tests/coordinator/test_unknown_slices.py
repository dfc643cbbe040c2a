"""What an agent holds and the books do not know, as after a restore: told to people, and ended when one says so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aliquot.common.limits import GIB
from aliquot.v1 import agent_pb2, leases_pb2
from tests.command_line import cli
from tests.coordinator.pool import Agent, Pool, agents, eventually, running, settings_for, sqlite
from tests.coordinator.test_metrics import scrape
from tests.coordinator.test_owner_metrics import of
from tests.coordinator.test_sessions import ready

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE
STOP = agent_pb2.DESIRED_STATE_STOP
METRIC = "aliquot_slices_unknown"


@asynccontextmanager
async def restored(*slice_ids: str) -> AsyncIterator[tuple[Pool, Agent]]:
    """A pool whose books were set back to before its agent was given these."""
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.25,1Gi", wait_until=ACTIVE)
            known = lease.slices[0].slice_id
            await agent.disconnect()
            for slice_id in slice_ids:
                held = agent_pb2.SliceReport()
                held.CopyFrom(agent.reservations[known])
                held.slice_id, held.lease_id, held.share_milli = slice_id, slice_id.partition(".")[0], 100
                agent.reservations[slice_id] = held
            await agent.connect()
            await eventually(lambda: any(each.full for each in agent.desired[-1:]), "a full desired state")
            await ready(pool)
            yield pool, agent


def stopped(agent: Agent) -> set[str]:
    return {piece.slice_id for each in agent.desired for piece in each.slices if piece.state == STOP}


async def test_it_is_listed_counted_and_a_condition_of_its_node_and_left_alone() -> None:
    async with restored("l-old1.1.0", "l-old2.3.1") as (pool, agent):
        code, said, _ = await cli(pool.address, "health", "--json")
        found = json.loads(said)["unknown_slices"]
        assert code == 0
        assert [(each["slice_id"], each["node_name"], each["share_milli"]) for each in found] == [
            ("l-old1.1.0", "n1", 100),
            ("l-old2.3.1", "n1", 100),
        ]
        assert found[0]["memory_bytes"] == GIB
        _, said, noted = await cli(pool.address, "health")
        assert "l-old2.3.1" in said
        assert "aliquot node settle" in noted
        _, said, _ = await cli(pool.address, "nodes", "n1")
        assert "2 that the books do not know are quarantined" in said
        assert of(scrape(pool), METRIC) == {"n1": 2}
        await pool.allocate("0.25,1Gi", wait_until=ACTIVE)
        assert not stopped(agent)


async def test_one_that_is_settled_ends_and_the_others_stay() -> None:
    async with restored("l-old1.1.0", "l-old2.3.1") as (pool, agent):
        code, said, _ = await cli(pool.address, "node", "settle", "n1", "l-old2.3.1", "--json")
        assert code == 0
        assert [each["slice_id"] for each in json.loads(said)["slices"]] == ["l-old2.3.1"]
        await eventually(lambda: "l-old2.3.1" in agent.settled, "it is gone")
        assert stopped(agent) == {"l-old2.3.1"}
        assert "l-old1.1.0" in agent.reservations
        assert of(scrape(pool), METRIC) == {"n1": 1}
        _, said, _ = await cli(pool.address, "access", "audit", "--json")
        assert "SettleSlices" in said
        await cli(pool.address, "node", "settle", "n1")
        await eventually(lambda: "l-old1.1.0" in agent.settled, "all that is left")
        assert of(scrape(pool), METRIC) == {}
        code, _, noted = await cli(pool.address, "node", "settle", "n1")
        assert (code, "the books know all" in noted) == (0, True)


@pytest.mark.parametrize("which", ["l-nothing.1.0", "known"])
async def test_what_a_lease_holds_is_not_ended_so(which: str) -> None:
    async with restored("l-old1.1.0") as (pool, agent):
        known = next(each for each in agent.reservations if each != "l-old1.1.0")
        code, _, said = await cli(pool.address, "node", "settle", "n1", known if which == "known" else which)
        assert code != 0
        assert "is not quarantined there" in said
        assert not stopped(agent)


async def test_what_was_settled_ends_after_a_restart_too(tmp_path: Path) -> None:
    """Its agent was away when it was to be told; by then another process leads."""
    settings = settings_for(sqlite(tmp_path / "journal.db"))
    async with running(settings) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.25,1Gi", wait_until=ACTIVE)
            held = agent_pb2.SliceReport()
            held.CopyFrom(agent.reservations[lease.slices[0].slice_id])
            held.slice_id, held.lease_id = "l-old1.1.0", "l-old1"
            await agent.disconnect()
            agent.reservations["l-old1.1.0"] = held
            await agent.connect()
            await eventually(lambda: of(scrape(pool), METRIC) == {"n1": 1}, "known to be unknown")
            await agent.disconnect()
            await cli(pool.address, "node", "settle", "n1")
    async with running(settings) as pool:
        again = Agent(pool.address, "n1")
        again.reservations["l-old1.1.0"] = held
        async with agents(again):
            await eventually(lambda: "l-old1.1.0" in again.settled, "told at once")

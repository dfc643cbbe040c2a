"""An agent that has obeyed a higher leader epoch than the journal knows: a backup was put back, or we were replaced."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.errors import NotLeader
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from aliquot.v1 import agent_pb2, leases_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, reason_of, running, settings_for, sqlite

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE


def has_obeyed(pool: Pool, node_id: str, leader_epoch: int) -> Agent:
    agent = Agent(pool.address, node_id)
    agent.welcome = agent_pb2.Welcome(leader_epoch=leader_epoch)
    return agent


async def led_by(pool: Pool) -> int:
    return (await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())).leader_epoch


async def test_a_journal_put_back_from_a_backup_goes_on_above_what_its_agents_have_obeyed(tmp_path: Path) -> None:
    path, backup = tmp_path / "pool.db", tmp_path / "backup.db"
    async with running(settings_for(sqlite(path))) as pool:
        await pool.declare()
    SqliteJournal(path).back_up(backup)
    obeyed = 0
    for _ in range(3):
        async with running(settings_for(sqlite(path))) as pool:
            obeyed = await led_by(pool)
    path.unlink()
    backup.rename(path)

    async with running(settings_for(sqlite(path))) as pool:
        assert await led_by(pool) < obeyed
        elder, younger = has_obeyed(pool, "n1", obeyed), has_obeyed(pool, "n2", obeyed)
        async with agents(elder, younger):
            assert elder.welcome.leader_epoch == younger.welcome.leader_epoch == obeyed + 1
            assert elder.welcome.session_epoch >> 32 == obeyed + 1
            lease = await pool.allocate("1", wait_until=ACTIVE, node_ids=["n1"])
            assert lease.state == types_pb2.LEASE_STATE_ACTIVE
            assert elder.desired[-1].leader_epoch == obeyed + 1
        assert await led_by(pool) == obeyed + 1
    async with running(settings_for(sqlite(path))) as pool:
        assert await led_by(pool) == obeyed + 2, "the jump is durable"


async def test_sessions_that_are_there_go_on_and_carry_the_higher_epoch() -> None:
    async with running() as pool:
        first = Agent(pool.address, "n1")
        async with agents(first):
            await pool.allocate("0.5", wait_until=ACTIVE, node_ids=["n1"])
            async with agents(has_obeyed(pool, "n2", 40)):
                lease = await pool.allocate("0.5", wait_until=ACTIVE, node_ids=["n1"])
                assert lease.state == types_pb2.LEASE_STATE_ACTIVE
                assert first.desired[-1].leader_epoch == 41
                assert first.ended is None


async def test_one_that_was_replaced_stops_instead_of_outranking_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    coordinator = Coordinator(settings_for(sqlite(path)))
    await coordinator.start()
    serving = asyncio.create_task(coordinator.serve())
    with (
        closing(sqlite3.connect(path)) as other,
        other,
    ):  # as a successor on another machine would, the lock notwithstanding
        other.execute("UPDATE meta SET value = value + 5 WHERE key = 'leader_epoch'")
    agent = Agent(coordinator.address, "n1")
    agent.welcome = agent_pb2.Welcome(leader_epoch=6)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await agent.connect()
    assert reason_of(refused.value) == "NOT_LEADER"
    with pytest.raises(NotLeader):
        await serving
    await agent.close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT value FROM meta WHERE key = 'leader_epoch'").fetchone() == (6,)


async def test_an_absurd_epoch_is_refused_and_moves_nothing() -> None:
    async with running() as pool:
        before = await led_by(pool)
        for absurd in (before + 10_000_000, (1 << 64) - 1):
            agent = has_obeyed(pool, "n1", absurd)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await agent.connect()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await agent.close()
        assert await led_by(pool) == before
        await eventually(lambda: len(pool.leading.roster) == 0, "nobody has a session")

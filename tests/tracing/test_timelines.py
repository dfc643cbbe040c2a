"""A lease's story, from its first fact to its last: after restarts, after preemption, and where facts are gone."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest

from aliquot.coordinator.reading.tracing.story import story_of
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from aliquot.v1 import leases_pb2
from tests.access.people import OWN, introduce
from tests.coordinator.pool import Agent, Pool, agents, allocation, reason_of, running, settings_for, sqlite

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE


async def timeline(pool: Pool, lease_id: str) -> leases_pb2.Timeline:
    return await pool.leases.GetTimeline(leases_pb2.GetTimelineRequest(lease_id=lease_id))


async def test_it_is_told_whole_after_a_restart(tmp_path: Path) -> None:
    settings = settings_for(sqlite(tmp_path / "journal.db"))
    async with running(settings) as pool, agents(Agent(pool.address, "n1")):
        lease = await pool.allocate("1", wait_until=ACTIVE, detached=True)
    async with running(settings) as pool, agents(Agent(pool.address, "n1")):
        for _ in range(2):  # facts of others, so that the first of this lease must be looked for
            items = [allocation("1", wait_until=leases_pb2.WAIT_UNTIL_QUEUED) for _ in range(200)]
            asked = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=items))
            ids = [result.lease.lease_id for result in asked.results]
            await pool.leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids))
        await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True, reason="done"))
        told = await timeline(pool, lease.lease_id)
    assert [step.what for step in told.steps] == ["QUEUED", "GRANTED", "ACTIVE", "RELEASING", "GONE", "ENDED"]
    assert told.complete
    assert "of n1" in told.steps[1].detail
    assert "done" in told.steps[3].detail
    assert [step.seq for step in told.steps] == sorted({step.seq for step in told.steps})
    assert [step.at_ms for step in told.steps] == sorted(step.at_ms for step in told.steps)
    assert len(told.trace_id) == 32


async def test_what_was_compacted_away_is_told_from_the_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with running(settings_for(sqlite(path))) as pool:
        await pool.declare(1)
        lease = await pool.allocate("1", detached=True)
    journal = SqliteJournal(path)
    journal.open()
    try:
        record = replay(journal).state.leases[lease.lease_id]
        assert story_of(journal, record).complete
        journal.prune(journal.last_seq, 1_000)
        story = story_of(journal, record)
    finally:
        journal.close()
    assert not story.complete
    assert [(step.what, step.at_ms, step.seq) for step in story.steps] == [
        ("QUEUED", lease.created_ms, 0),
        ("GRANTED", lease.granted_ms, 0),
    ]


async def test_strangers_are_told_nothing(tmp_path: Path) -> None:
    async with running() as pool:
        people = await introduce(pool.channel)
        lease = await people.admin.lease(OWN)
        request = leases_pb2.GetTimelineRequest(lease_id=lease.lease_id)
        assert (await people["viewer of all"].leases.GetTimeline(request)).steps
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await people["metrics"].leases.GetTimeline(request)
        assert reason_of(refused.value) == "ROLE_MISSING"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await timeline(pool, "l-0123456789abc")
        assert reason_of(unknown.value) == "LEASE_NOT_FOUND"

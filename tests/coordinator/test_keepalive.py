"""Leases live as long as somebody says so; and nobody is late while it was the coordinator that stood still."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aliquot.v1 import leases_pb2, types_pb2
from tests.coordinator.journals import HeldJournal
from tests.coordinator.pool import Pool, allocation, eventually, reason_of, running
from tests.manual_clock import ManualClock

START_MS = 1_800_000_000_000


async def pass_time(pool: Pool, clock: ManualClock, seconds: int) -> None:
    """Second by second, as the coordinator's own sweeps would see it."""
    for _ in range(seconds):
        clock.advance(1_000)
        pool.leading.sweep_timer.beat()
        pool.leading.writer.wake()
        await asyncio.sleep(0)


async def keep(pool: Pool, *lease_ids: str) -> leases_pb2.KeepAliveResponse:
    call = pool.leases.KeepAlive()
    await call.write(leases_pb2.KeepAliveRequest(lease_ids=lease_ids))
    answer = await call.read()
    assert isinstance(answer, leases_pb2.KeepAliveResponse)
    await call.done_writing()
    return answer


def state_of(pool: Pool, lease_id: str) -> tuple[int, str]:
    lease = pool.coordinator.view.leases[lease_id]
    return int(lease.state), lease.end_reason


async def test_a_lease_that_nobody_keeps_expires_and_one_that_is_kept_does_not() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        await pool.declare(1)
        dropped = await pool.allocate("0.1", ttl_s=10)
        kept = await pool.allocate("0.1", ttl_s=10)
        detached = await pool.allocate("0.1", detached=True)
        await pass_time(pool, clock, 8)
        answer = await keep(pool, kept.lease_id, detached.lease_id)
        assert (answer.kept, answer.renew_within_ms) == (2, 10_000)
        await pass_time(pool, clock, 4)
        await eventually(lambda: state_of(pool, dropped.lease_id) == (7, "EXPIRED"), "it has expired")
        assert state_of(pool, kept.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED
        assert state_of(pool, detached.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED
        late = await keep(pool, dropped.lease_id, kept.lease_id, "l-nobody")
        assert dict(late.lost) == {dropped.lease_id: "LEASE_EXPIRED", "l-nobody": "LEASE_NOT_FOUND"}
        await pool.release(kept.lease_id)
        assert dict((await keep(pool, kept.lease_id)).lost) == {kept.lease_id: "LEASE_ENDED"}


async def test_a_pause_of_the_coordinator_costs_nobody_a_lease() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        await pool.declare(1)
        lease = await pool.allocate("0.1", ttl_s=10)
        await pass_time(pool, clock, 5)
        clock.advance(60_000)  # stopped, or starved, for a minute
        pool.leading.sweep_timer.beat()
        await pass_time(pool, clock, 8)
        clock.suspend(3_600_000)  # the machine slept for an hour
        pool.leading.sweep_timer.beat()
        await pass_time(pool, clock, 8)
        assert state_of(pool, lease.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED
        await pass_time(pool, clock, 4)
        await eventually(lambda: state_of(pool, lease.lease_id)[1] == "EXPIRED", "and then it does expire")


async def test_every_ttl_starts_again_in_full_at_a_restart() -> None:
    journal, clock = HeldJournal(), ManualClock(START_MS)
    async with running(journal=journal, clock=clock) as pool:
        await pool.declare(1)
        lease = await pool.allocate("0.1", ttl_s=10)
        await pass_time(pool, clock, 9)
    async with running(journal=journal, clock=clock) as pool:
        await pass_time(pool, clock, 9)
        assert state_of(pool, lease.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED
        await pass_time(pool, clock, 2)
        await eventually(lambda: state_of(pool, lease.lease_id)[1] == "EXPIRED", "it expires")


async def test_a_caller_that_waits_keeps_its_lease_by_waiting() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        await pool.declare(1)
        first = await pool.allocate("1", detached=True)
        waiting = asyncio.create_task(pool.allocate("1", ttl_s=5, wait_timeout_ms=3_000_000))
        await eventually(lambda: len(pool.leading.waiters) == 1, "it waits")
        await pass_time(pool, clock, 30)
        await pool.release(first.lease_id)
        lease = await waiting
        assert lease.state == types_pb2.LEASE_STATE_GRANTED
        await pass_time(pool, clock, 7)
        await eventually(lambda: state_of(pool, lease.lease_id)[1] == "EXPIRED", "nobody kept it afterwards")


async def test_a_time_limit_ends_a_lease_by_the_clock() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        await pool.declare(1)
        lease = await pool.allocate("0.1", detached=True, time_limit_s=60)
        await pass_time(pool, clock, 59)
        assert state_of(pool, lease.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED
        await pass_time(pool, clock, 2)
        await eventually(lambda: state_of(pool, lease.lease_id)[1] == "TIME_LIMIT", "its time is over")


async def test_too_many_ids_in_one_message_are_refused() -> None:
    async with running() as pool:
        call = pool.leases.KeepAlive()
        await call.write(leases_pb2.KeepAliveRequest(lease_ids=["l-x"] * 10_001))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert reason_of(refusal.value) == "INVALID_FIELD"


async def test_a_retry_with_its_key_renews_the_lease() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        await pool.declare(1)
        request = allocation("0.1", ttl_s=10, idempotency_key="k")
        lease = (await pool.leases.Allocate(request)).lease
        await pass_time(pool, clock, 9)
        await pool.leases.Allocate(request)
        await pass_time(pool, clock, 9)
        assert state_of(pool, lease.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED


async def test_a_retry_keeps_its_lease_while_the_disk_keeps_its_answer() -> None:
    journal, clock = HeldJournal(), ManualClock(START_MS)
    async with running(journal=journal, clock=clock) as pool:
        await pool.declare(1)
        request = allocation("0.1", ttl_s=10, idempotency_key="k")
        lease = (await pool.leases.Allocate(request)).lease
        await pass_time(pool, clock, 9)
        journal.hold()
        other = asyncio.create_task(pool.allocate("0.1", detached=True))
        await asyncio.to_thread(journal.waiting.wait, 30)
        retry = pool.leases.Allocate(request)
        await pool.leases.List(leases_pb2.ListRequest())  # on the same connection, so the retry is there before it
        await eventually(lambda: pool.leading.writer.queued == 0, "both are decided")
        await pass_time(pool, clock, 9)
        journal.let_go()
        await other
        assert (await retry).lease.state == types_pb2.LEASE_STATE_GRANTED
        assert state_of(pool, lease.lease_id)[0] == types_pb2.LEASE_STATE_GRANTED

"""Durable before visible; and when the journal fails, nothing is granted, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.coordinator.journals import FailingJournal, HeldJournal
from tests.coordinator.pool import (
    Agent,
    Pool,
    agents,
    allocation,
    eventually,
    reason_of,
    retry_after_ms,
    running,
    settings_for,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_nothing_shows_what_is_not_durable() -> None:
    journal = HeldJournal()
    async with running(settings_for(metrics_port=0), journal=journal) as pool:
        await pool.declare(1)
        watch = pool.watch()
        bookmark = await watch.read()
        seq = bookmark.seq
        journal.hold()
        asking = asyncio.create_task(pool.allocate("1"))
        await eventually(journal.waiting.is_set, "the commit is under way")
        # Another is decided on top of what is not durable yet, and so are a refusal and a dry run.
        refused = asyncio.create_task(pool.allocate("1", no_queue=True))
        whole = types_pb2.LeaseRequest(gpu="1", tenant="team")
        explained = asyncio.create_task(_explain(pool, whole))
        event = asyncio.create_task(watch.read())
        await asyncio.sleep(0.3)
        assert not asking.done()
        assert not refused.done()
        assert not explained.done()
        assert not event.done()
        page = await pool.leases.List(leases_pb2.ListRequest())
        assert (list(page.leases), page.seq) == ([], seq)
        status = await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())
        assert (status.leases, status.seq) == (0, seq)
        assert (await pool.node("node-0")).slices == 0
        assert "aliquot_leases_granted_total 0.0" in await _metrics(pool)
        journal.let_go()
        lease = await asking
        assert lease.state == types_pb2.LEASE_STATE_GRANTED
        assert (await event).lease.lease_id == lease.lease_id
        assert not (await explained).explanation.fits_now
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await refused
        assert reason_of(refusal.value) == "NO_CAPACITY"
        assert "aliquot_leases_granted_total 1.0" in await _metrics(pool)


async def test_a_stop_while_old_records_are_to_be_dropped_commits_what_was_decided_and_ends() -> None:
    journal = HeldJournal()
    async with asyncio.timeout(60), running(journal=journal) as pool:
        await pool.declare(1)
        journal.hold()
        first = asyncio.create_task(pool.allocate("0.25"))
        await eventually(journal.waiting.is_set, "the commit is under way")
        second = asyncio.create_task(pool.allocate("0.25"))
        await asyncio.sleep(0.3)
        writer = pool.leading.writer
        writer.prune(1)
        writer.close()
        journal.let_go()
        for lease in await asyncio.gather(first, second):
            assert lease.state == types_pb2.LEASE_STATE_GRANTED


async def test_old_records_that_stay_are_told_until_they_go() -> None:
    journal = FailingJournal()

    async def told(pool: Pool) -> list[str]:
        health = await pool.nodes.GetHealth(pool_pb2.GetHealthRequest())
        return [f"{each.subject}: {each.text}" for each in health.conditions]

    async with asyncio.timeout(60), running(journal=journal) as pool:
        await pool.declare(1)
        journal.broken = True
        pool.leading.writer.prune(1)
        while not (found := await told(pool)):
            pass
        assert found == ["pruning: old records can't be dropped: the table is locked"]
        journal.broken = False
        pool.leading.writer.prune(1)
        while await told(pool):
            await pool.allocate("0.01")


async def test_no_agent_hears_of_what_is_not_durable() -> None:
    journal = HeldJournal()
    async with running(journal=journal) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await eventually(lambda: bool(agent.desired), "the first, empty desired state")
            journal.hold()
            asking = asyncio.create_task(pool.allocate("1", wait_until=leases_pb2.WAIT_UNTIL_ACTIVE))
            await eventually(journal.waiting.is_set, "the commit is under way")
            await asyncio.sleep(0.3)
            assert not any(desired.slices for desired in agent.desired)
            journal.let_go()
            assert (await asking).state == types_pb2.LEASE_STATE_ACTIVE


async def test_a_failed_commit_is_unavailable_and_memory_forgets_it() -> None:
    journal = FailingJournal()
    async with running(settings_for(metrics_port=0), journal=journal) as pool:
        await pool.declare(1)
        kept = await pool.allocate("0.5", idempotency_key="kept")
        journal.broken = True
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await pool.allocate("0.5", idempotency_key="lost")
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(failure.value) == "JOURNAL_UNAVAILABLE"
        assert retry_after_ms(failure.value) > 0
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await pool.release(kept.lease_id)
        assert reason_of(failure.value) == "JOURNAL_UNAVAILABLE"
        # Reads go on, and say that nothing is granted.
        assert (await pool.get(kept.lease_id)).state == types_pb2.LEASE_STATE_GRANTED
        status = await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())
        assert not status.granting
        assert "full" in status.not_granting_reason
        await eventually(lambda: _health(pool, "aliquot.grants", NOT_SERVING), "health says so")
        assert await _health(pool, "", SERVING)
        assert await _ready(pool) == 503
        journal.broken = False
        await eventually(lambda: _health(pool, "aliquot.grants", SERVING), "granting goes on by itself")
        assert await _ready(pool) == 200
        again = await pool.leases.Allocate(allocation("0.5", idempotency_key="lost"))
        assert not again.replayed
        assert (await pool.leases.Allocate(allocation("0.5", idempotency_key="kept"))).lease.lease_id == kept.lease_id


async def test_a_commit_of_unknown_outcome_that_was_durable_is_found_by_its_key() -> None:
    journal = FailingJournal()
    async with running(journal=journal) as pool:
        await pool.declare(1)
        watch = pool.watch()
        await watch.read()
        journal.durable_all_the_same = journal.broken = True
        with pytest.raises(grpc.aio.AioRpcError):
            await pool.allocate("0.5", idempotency_key="k")
        journal.broken = False
        await eventually(lambda: pool.leading.writer.granting, "granting goes on")
        again = await pool.leases.Allocate(allocation("0.5", idempotency_key="k"))
        assert again.replayed
        assert again.lease.state == types_pb2.LEASE_STATE_GRANTED
        # Who watched can't know what it missed, and is told to list again.
        with pytest.raises(grpc.aio.AioRpcError) as compacted:
            await watch.read()
        assert reason_of(compacted.value) == "WATCH_COMPACTED"


async def test_confirmations_lost_with_the_journal_are_asked_for_again() -> None:
    journal = FailingJournal()
    async with running(journal=journal) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await eventually(lambda: bool(agent.desired), "the node is ready")
            agent.confirms = False
            lease = await pool.allocate("1")
            piece = lease.slices[0]
            journal.broken = True
            agent.confirms = True
            await agent.report(*agent.obey(agent.desired[-1]))
            await eventually(lambda: not pool.leading.writer.granting, "the confirmation could not be committed")
            journal.broken = False
            await eventually(lambda: _slice_state(pool, lease.lease_id) == 2, "it was asked for again")
            assert "snapshot_request" in agent.received
            assert piece.slice_id in agent.reservations


async def test_orderly_stop_makes_durable_what_was_accepted() -> None:
    journal = HeldJournal()
    async with running(journal=journal) as pool:
        await pool.declare(1)
        journal.hold()
        asking = asyncio.create_task(pool.allocate("0.5", idempotency_key="k"))
        await eventually(journal.waiting.is_set, "the commit is under way")
        pool.coordinator.stop()
        await asyncio.sleep(0.1)
        journal.let_go()
        lease = await asking
        assert lease.state == types_pb2.LEASE_STATE_GRANTED
    async with running(journal=journal) as pool:
        assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_GRANTED


def _slice_state(pool: Pool, lease_id: str) -> int:
    return int(pool.coordinator.view.leases[lease_id].slices[0].state)


async def _explain(pool: Pool, request: types_pb2.LeaseRequest) -> leases_pb2.ExplainResponse:
    return await pool.leases.Explain(leases_pb2.ExplainRequest(request=request))


async def _metrics(pool: Pool) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://{pool.coordinator.metrics_address}/metrics") as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


async def _ready(pool: Pool) -> int:
    def read() -> int:
        try:
            with urllib.request.urlopen(f"http://{pool.coordinator.metrics_address}/readyz") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    return await asyncio.to_thread(read)


async def _health(pool: Pool, service: str, wanted: int) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(pool.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return bool(answer.status == wanted)

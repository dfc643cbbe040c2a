"""At each bound, who asks for more is told when to come back, over real gRPC; and the SDK comes back then."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from aliquot.client import AsyncPool, WaitUntil
from aliquot.coordinator.agents import roster
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.reading import waiting, watch
from aliquot.coordinator.rpc import keeping
from aliquot.coordinator.settings.config import LimitSettings
from aliquot.v1 import leases_pb2
from tests.coordinator.pool import (
    Agent,
    Pool,
    agents,
    allocation,
    error_info,
    eventually,
    reason_of,
    retry_after_ms,
    running,
    settings_for,
)

SHED = grpc.StatusCode.RESOURCE_EXHAUSTED


def is_shed(error: grpc.aio.AioRpcError) -> bool:
    return (error.code(), reason_of(error)) == (SHED, "OVERLOADED") and retry_after_ms(error) > 0


async def shed(read: Any) -> grpc.aio.AioRpcError:
    """The refusal of a stream that must be shed."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await read
    assert is_shed(refusal.value)
    return refusal.value


@contextlib.asynccontextmanager
async def full_queue(pool: Pool) -> AsyncIterator[None]:
    """Keep the writer's queue full of commands that do nothing."""

    async def fill() -> None:
        while True:
            with contextlib.suppress(Overloaded):
                while True:
                    pool.leading.writer.submit(c.Tick())
            await asyncio.sleep(0)

    filling = asyncio.create_task(fill())
    try:
        yield
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


async def test_requests_beyond_the_queue_are_told_to_come_back_and_leave_nothing_behind() -> None:
    async with running(settings_for(limits=LimitSettings(commands_queued_max=3))) as pool:
        await pool.declare(1)
        async with full_queue(pool):
            calls = [pool.allocate("0.001,1Mi", wait_until=leases_pb2.WAIT_UNTIL_QUEUED) for _ in range(100)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert refused
        assert all(isinstance(error, grpc.aio.AioRpcError) and is_shed(error) for error in refused)
        assert len(pool.coordinator.view.leases) == 100 - len(refused)
        assert pool.coordinator.metrics.refused["OVERLOADED"] == len(refused)


async def test_of_a_batch_those_that_are_shed_say_so_each() -> None:
    async with running(settings_for(limits=LimitSettings(commands_queued_max=3))) as pool:
        await pool.declare(1)
        items = [allocation("0.001,1Mi")] * 32  # few enough that no turn of the writer comes between two of them
        answer = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=items))
        results = [result.WhichOneof("result") for result in answer.results]
        assert results == ["lease"] * 3 + ["error"] * 29
        assert {error_info(result.error).reason for result in answer.results[3:]} == {"OVERLOADED"}


async def test_the_sdk_comes_back_until_all_is_granted() -> None:
    async with running(settings_for(limits=LimitSettings(commands_queued_max=3))) as pool:
        await pool.declare(1)
        async with AsyncPool([pool.address], tenant="team") as sdk:
            asked = [
                asyncio.ensure_future(sdk.allocate("0.001,1Mi", until=WaitUntil.GRANTED, detached=True))
                for _ in range(50)
            ]
            async with full_queue(pool):
                await eventually(lambda: pool.coordinator.metrics.refused["OVERLOADED"] >= 10, "some are shed")
            leases = await asyncio.gather(*asked)
        assert len({lease.lease_id for lease in leases}) == len(pool.coordinator.view.leases) == 50


async def test_while_commands_wait_too_long_those_who_ask_for_more_are_sent_away_and_others_are_not() -> None:
    async with running(settings_for(limits=LimitSettings(commands_wait_max=10))) as pool:  # type: ignore[arg-type]
        writer = pool.leading.writer
        first = writer.ask(c.Tick())
        time.sleep(0.05)  # noqa: ASYNC251 - the event loop stands still, as it does when there is too much to do
        with pytest.raises(Overloaded) as refusal:
            writer.ask(c.Tick())
        assert refusal.value.retry_after_ms > 10
        accepted = writer.submit(c.Tick())
        await asyncio.gather(first, accepted)
        await writer.ask(c.Tick())


async def test_watchers_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCHERS_MAX", 1)
    async with running() as pool:
        first = pool.watch()
        await first.read()
        await shed(pool.watch().read())
        first.cancel()

        async def room() -> bool:
            third = pool.watch()
            try:
                return bool(await third.read())
            except grpc.aio.AioRpcError:
                return False
            finally:
                third.cancel()

        await eventually(room, "there is room again")


async def test_agents_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "SESSIONS_MAX", 1)
    async with running() as pool:
        first, second = Agent(pool.address, "n1"), Agent(pool.address, "n2")
        async with agents(first):
            error = await shed(second.connect())
            assert retry_after_ms(error) == 10_000
            assert pool.coordinator.metrics.refused["OVERLOADED"] == 1
            await second.close()


async def test_callers_that_wait_beyond_the_bound_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITERS_MAX", 1)
    async with running() as pool:
        await pool.declare(1)
        await pool.allocate("1")
        waits = asyncio.ensure_future(pool.allocate("1"))
        await eventually(lambda: len(pool.leading.waiters) == 1, "one waits")
        await shed(pool.allocate("1"))
        assert len(pool.coordinator.view.leases) == 2
        await pool.allocate("1", wait_until=leases_pb2.WAIT_UNTIL_QUEUED)  # it does not wait
        waits.cancel()
        await eventually(lambda: len(pool.leading.waiters) == 0, "it has left")


async def test_launchers_that_keep_alive_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEPERS_MAX", 1)
    async with running() as pool:
        first = pool.leases.KeepAlive()
        await first.write(leases_pb2.KeepAliveRequest())
        await first.read()
        second = pool.leases.KeepAlive()
        await second.write(leases_pb2.KeepAliveRequest())
        await shed(second.read())
        first.cancel()

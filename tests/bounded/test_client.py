"""Leases that are over leave nothing behind in a launcher that holds one after the other."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from aliquot.client import AsyncPool, PoolError
from tests.bounded.counting import everything_in
from tests.coordinator.pool import Agent, agents, running


async def some(pool: AsyncPool, number: int) -> None:
    for _ in range(number):
        async with pool.lease("0.1,1Gi"):
            pass
        with pytest.raises(PoolError):
            await pool.lease("8(no-such-model)", wait_s=0.1)
        await pool.status()
        async for _ in pool.leases():
            pass


def kept(pool: AsyncPool) -> Counter[str]:
    gc.collect()
    found = everything_in(pool)
    found["tasks"] = len(asyncio.all_tasks())
    return found


async def test_leases_that_are_over_leave_nothing() -> None:
    async with (
        running() as served,
        agents(Agent(served.address, "n1")),
        AsyncPool([served.address], tenant="team") as pool,
    ):
        await some(pool, 5)
        few = kept(pool)
        await some(pool, 40)
        grown = {name: (few[name], count) for name, count in kept(pool).items() if count > few[name] + 8}
        assert not grown, f"(before, after) of what has grown: {grown}"

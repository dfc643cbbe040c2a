"""A task that waits is woken by what happens, or by time, and can be cancelled at any moment."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.agent.bell import Bell


async def test_it_wakes_who_waits_and_who_waits_next() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait(3600))
    await asyncio.sleep(0)
    bell.ring()
    bell.ring()
    await waiting
    await bell.wait(3600)
    bell.hush()
    await bell.wait(0.001)


async def test_a_cancellation_in_the_turn_of_the_ring_is_not_lost() -> None:
    bell = Bell()
    for _ in range(3):
        waiting = asyncio.create_task(bell.wait(3600))
        await asyncio.sleep(0)
        bell.ring()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        bell.hush()
    await bell.wait(0)

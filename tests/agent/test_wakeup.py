"""A task that waits is woken by what happens, or by time, and can be cancelled at any moment."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.agent.wakeup import Wakeup


async def test_it_wakes_who_waits_and_who_waits_next() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait(3600))
    await asyncio.sleep(0)
    wakeup.set()
    wakeup.set()
    await waiting
    await wakeup.wait(3600)
    wakeup.clear()
    await wakeup.wait(0.001)


async def test_a_cancellation_in_the_turn_of_the_wake_up_is_not_lost() -> None:
    wakeup = Wakeup()
    for _ in range(3):
        waiting = asyncio.create_task(wakeup.wait(3600))
        await asyncio.sleep(0)
        wakeup.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        wakeup.clear()
    await wakeup.wait(0)

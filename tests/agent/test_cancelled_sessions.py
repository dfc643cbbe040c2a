"""A session that ends in the very turn in which there is something to say still ends (simulation, seed 22)."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.agent.bell import Bell
from aliquot.agent.stream import Stream


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_is_never_lost_to_a_wake_up(turns: int) -> None:
    async def write(message: object) -> None:
        pass

    quiet: Any = SimpleNamespace(
        _wake=Bell(),
        _pending=lambda session_epoch: iter(()),
        _reporter=SimpleNamespace(seq=1, delta_in_s=lambda: math.inf),
        _heartbeat_ms=60_000,
    )
    call: Any = SimpleNamespace(write=write)
    telling = asyncio.create_task(Stream._tell(quiet, call, 1))
    for _ in range(5):
        await asyncio.sleep(0)

    quiet._wake.ring()
    for _ in range(turns):
        await asyncio.sleep(0)
    telling.cancel()
    for _ in range(10):
        await asyncio.sleep(0)

    assert telling.cancelled()

"""A session that ends in the very turn in which there is something to say still ends (simulation, seed 22)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.agent.mailbox import Mailbox
from aliquot.agent.state import NodeState
from aliquot.agent.stream import Stream
from aliquot.agent.world import World


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_is_never_lost_to_a_wake_up(turns: int) -> None:
    async def write(message: object) -> None:
        pass

    world = World()
    mailbox = Mailbox(NodeState("node", "node", "boot"), world.clock)
    quiet: Any = SimpleNamespace(
        _mailbox=mailbox,
        _pending=lambda session_epoch: iter(()),
        _world=world,
        _heartbeat_ms=60_000,
        _renewal=None,
    )
    call: Any = SimpleNamespace(write=write)
    telling = asyncio.create_task(Stream._send_reports(quiet, call, 1))
    for _ in range(5):
        await asyncio.sleep(0)

    mailbox.wakeup.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    telling.cancel()
    for _ in range(10):
        await asyncio.sleep(0)

    assert telling.cancelled()

"""How what agents say reaches the writer: without waiting where it can be said again, or else when there is room."""

from __future__ import annotations

import asyncio

from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.writing.groups import Reply
from aliquot.coordinator.writing.writer import Writer

_RETRY_S = 0.1


def offer(writer: Writer, command: Command) -> bool:
    """Submit a command whose outcome nobody waits for; whether it was accepted."""
    try:
        writer.submit(command)
    except AliquotError:
        return False
    return True


async def submit_when_room(writer: Writer, command: Command) -> Reply:
    """Submit a command as soon as the writer's queue has room: an agent is not read meanwhile, which slows it down.

    Raises what `Writer.submit` does, but not Overloaded.
    """
    while True:
        try:
            return writer.submit(command)
        except Overloaded:
            await asyncio.sleep(_RETRY_S)

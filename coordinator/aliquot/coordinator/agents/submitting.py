"""How what agents say reaches the writer: without waiting where it can be said again, or else when there is room."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.writing.writer import Writer

T = TypeVar("T")

_RETRY_S = 0.1


def offer(writer: Writer, command: Command[Any]) -> bool:
    """Submit a command whose outcome nobody waits for; whether it was accepted."""
    try:
        writer.submit(command)
    except AliquotError:
        return False
    return True


async def submit_when_room(writer: Writer, command: Command[T]) -> asyncio.Future[T]:
    """Submit a command as soon as the writer's queue has room: an agent is not read meanwhile, which slows it down.

    Raises what `Writer.submit` does, but not Overloaded.
    """
    while True:
        try:
            return writer.submit(command)
        except Overloaded:
            await asyncio.sleep(_RETRY_S)

"""An event with a time-out.

An agent's tasks wait like this every second. `asyncio.timeout` around `Event.wait` would do the same by cancelling the
task, which costs several times as much.
"""

from __future__ import annotations

import asyncio


class Wakeup:
    """Anybody sets it, one task waits for it. Use from one event loop."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """There is something to do: whoever waits, or waits next, goes on at once."""
        self._set = True
        if self._waiter is not None:
            _end(self._waiter)

    def clear(self) -> None:
        """What it was set for is about to be done."""
        self._set = False

    async def wait(self, at_most_s: float) -> None:
        """Until it is set, or so long."""
        if self._set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(at_most_s, _end, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            timer.cancel()


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

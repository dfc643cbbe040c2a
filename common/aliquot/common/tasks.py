"""Work that is started and that nobody awaits: kept until it ends, since the event loop would let it be collected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

_ROUNDS = 8
"""Of the event loop: gRPC takes five until a call that has come is known to who answers it, and two more until its
message is.
"""


def _say(task: asyncio.Task[None], error: BaseException) -> None:
    log.error("%s failed", task.get_name(), exc_info=error)


class Tasks:
    """Of one event loop. `failed` is told of each that ends by an error; without it the log says so."""

    def __init__(self, failed: Callable[[asyncio.Task[None], BaseException], None] = _say) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order in which they were started, in which they are ended as well: a set of them has none."""

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start one. What it fails with is told under its name."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def wait(self) -> None:
        """Until all that run now have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.0)  # what had ended is told by the loop's next turn, for which gather does not wait

    async def end(self) -> None:
        """Cancel them all, and wait until they are gone."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(task, error)


@contextlib.asynccontextmanager
async def beside(name: str, work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Work that goes on meanwhile, and is ended then. What it fails with before that is its task's to tell."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def let_in() -> None:
    """Pause in long work for as many rounds of the event loop as it takes to answer a call. Else who only reads would
    wait in each of them. A round takes a microsecond where nobody comes.
    """
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)

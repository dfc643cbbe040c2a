"""What runs beside the writer for as long as a coordinator leads: its sweeps, compaction, the price learner, and more.

Each of these handles by itself what can go wrong around it, so one that ends by an error has a defect. A coordinator
without its sweeps would keep the leases of launchers that are long gone, and one without compaction would fill its
disk: it ends instead, loudly and in order, and is started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)


class Background:
    """Tasks of one event loop. `failed` is called when one of them ended by an error."""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order in which they were started, in which they are ended as well: a set of them has none."""
        self.failure: BaseException | None = None
        """The first error that ended one of them."""

    def run(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Start one."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def end(self) -> None:
        """Cancel them all, and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.0)  # what had ended is told by the loop's next turn, for which gather does not wait

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("%s failed, and this coordinator ends", task.get_name(), exc_info=error)
            self.failure = self.failure or error
            self._failed()

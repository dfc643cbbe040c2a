"""The one thread in which a journal is written, so that syncing never stops the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class JournalWorker(Protocol):
    """Runs blocking calls one after the other and reports back on the event loop."""

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Call `call`, then `done(result, error)` on the running event loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """Call `call` and wait for it."""

    def stop(self) -> None:
        """End once what was submitted is done."""


class JournalThread(JournalWorker):
    """It does so in a thread.

    Leaner than an executor: a commit happens up to a thousand times a second, and each costs one queue and one wake-up.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Call `call` in the thread, then `done(result, error)` on the running event loop."""
        self._jobs.put(_Job(call, done, asyncio.get_running_loop()))

    async def run(self, call: Callable[[], T]) -> T:
        """Call `call` in the thread and wait for it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # it is a T when there is no error

        self.submit(call, done)
        return await future

    def stop(self) -> None:
        """End the thread once what was submitted is done; waits for it."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.carry_out()
            del job


class _Job(Generic[T]):
    __slots__ = ("_call", "_done", "_loop")

    def __init__(
        self,
        call: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._call, self._done, self._loop = call, done, loop

    def carry_out(self) -> None:
        result, failure = None, None
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            failure = error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._done, result, failure)

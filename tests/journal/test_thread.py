"""The journal's thread: calls in order, off the event loop, and what they give or raise comes back to it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aliquot.coordinator.writing.journal.thread import JournalThread


async def test_calls_are_made_in_order_elsewhere_and_reported_here() -> None:
    worker = JournalThread()
    threads: list[threading.Thread] = []
    reported: asyncio.Queue[tuple[int | None, BaseException | None, bool]] = asyncio.Queue()

    def call(number: int) -> int:
        threads.append(threading.current_thread())
        return number

    def done(result: int | None, error: BaseException | None) -> None:
        reported.put_nowait((result, error, threading.current_thread() is threading.main_thread()))

    for number in range(3):
        worker.submit(lambda number=number: call(number), done)  # type: ignore[misc]
    assert [await reported.get() for _ in range(3)] == [(0, None, True), (1, None, True), (2, None, True)]
    assert {thread.name for thread in threads} == {"journal"}
    assert threads[0].daemon
    worker.stop()
    assert not threads[0].is_alive()


async def test_what_a_call_raises_is_raised_to_who_waits_and_the_thread_goes_on() -> None:
    worker = JournalThread()

    class OutOfTheOrdinary(BaseException):
        pass

    def fail() -> None:
        raise OutOfTheOrdinary

    with pytest.raises(OutOfTheOrdinary):
        await worker.run(fail)
    assert await worker.run(lambda: 5) == 5
    worker.stop()


async def test_who_no_longer_waits_hears_nothing() -> None:
    worker = JournalThread()
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
    going, go_on = threading.Event(), threading.Event()

    def call() -> int:
        going.set()
        return int(go_on.wait(60))

    waiting = asyncio.create_task(worker.run(call))
    await asyncio.to_thread(going.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await worker.run(lambda: 5) == 5
    assert not problems
    worker.stop()


def test_a_loop_that_has_closed_hears_nothing() -> None:
    worker = JournalThread()
    go_on, last = threading.Event(), threading.Event()

    async def leave() -> None:
        worker.submit(go_on.wait, lambda _result, _error: None)
        worker.submit(last.set, lambda _result, _error: None)

    asyncio.run(leave())
    go_on.set()
    worker.stop()
    assert last.is_set()

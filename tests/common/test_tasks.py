"""Work that nobody awaits is kept, ended in the order in which it was started, and says what it failed with."""

from __future__ import annotations

import asyncio
import gc

import pytest

from aliquot.common.tasks import Tasks


async def test_tasks_are_ended_in_the_order_in_which_they_were_started() -> None:
    tasks = Tasks()
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(40):
        tasks.run(f"work {number}", work(number))
    await asyncio.sleep(0)
    gc.collect()
    assert ended == []
    await tasks.end()
    assert ended == list(range(40))


async def _fail(text: str) -> None:
    raise RuntimeError(text)


async def test_each_failure_is_told_with_its_name() -> None:
    told: list[str] = []
    tasks = Tasks(lambda task, error: told.append(f"{task.get_name()}: {error}"))
    tasks.run("first", _fail("one"))
    tasks.run("second", _fail("two"))
    await tasks.wait()
    assert told == ["first: one", "second: two"]


async def test_a_failure_is_a_line_of_the_log_where_nobody_else_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    tasks.run("cut GPU-a", _fail("no"))
    await tasks.wait()
    (line,) = caplog.records
    assert line.getMessage() == "cut GPU-a failed"
    assert line.exc_info is not None

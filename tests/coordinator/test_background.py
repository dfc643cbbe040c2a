"""What runs beside the writer ends in the order in which it was started, and whoever ends by an error is known."""

from __future__ import annotations

import asyncio

from aliquot.coordinator.upkeep.background import Background


async def test_tasks_are_ended_in_the_order_in_which_they_were_started() -> None:
    background = Background(lambda: None)
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(40):
        background.run(f"work {number}", work(number))
    await asyncio.sleep(0)
    await background.end()
    assert ended == list(range(40))


async def test_the_first_failure_is_kept_and_told() -> None:
    told: list[str] = []
    background = Background(lambda: told.append("failed"))

    async def fail(text: str) -> None:
        raise RuntimeError(text)

    background.run("first", fail("one"))
    background.run("second", fail("two"))
    await asyncio.sleep(0.0)
    await background.end()
    assert str(background.failure) == "one"
    assert told == ["failed", "failed"]

"""Keeps prices up to date: what has arrived goes to the price programme, its table comes back as a command.

The programme (`price_programme`) runs in a process of its own for each lesson. Nothing of it stays in memory between
lessons, it ends with its input where the coordinator is killed, and a lesson that fails leaves the old prices in force.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable

import msgspec

from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.upkeep.lesson import Lesson

logger = logging.getLogger(__name__)

LESSON_MAX_S = 60.0
"""The programme takes a second to start, and up to ten where cards differ in memory; one that hangs is ended."""

STORY_MAX = 300
"""Characters of a failed programme's last words that go to the log."""


class LessonError(Exception):
    """The programme failed; its last words say why."""


async def run_programme(summary: bytes, version: int) -> Lesson | None:
    """One lesson in a process of its own; None where the mix teaches nothing. Raises LessonError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aliquot.coordinator.upkeep.price_programme", str(version)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise LessonError(str(error)) from error
    try:
        async with asyncio.timeout(LESSON_MAX_S):
            out, story = await process.communicate(summary)
    except TimeoutError as error:
        raise LessonError(f"no result in {LESSON_MAX_S:.0f} s") from error
    except (OSError, RuntimeError) as error:  # the latter is uvloop's word for a reader that has died
        raise LessonError(f"it has died: {error}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise LessonError(story.decode(errors="replace").strip()[-STORY_MAX:] or f"status {process.returncode}")
    return msgspec.msgpack.decode(out, type=Lesson) if out else None


class PriceLearner:
    """Refreshes prices for as long as it runs: mix out, table in, away from the writer.

    `summarise` is called on the loop and must be cheap; `submit` hands the table to the writer as a command. A learner
    that fails leaves the old prices in force and says so in the log.
    """

    def __init__(
        self,
        summarise: Callable[[], MixSummary],
        submit: Callable[[PriceTable], Awaitable[None]],
        *,
        version: int = 0,
        interval_s: float = 30.0,
        arrivals_min: int = 200,
    ) -> None:
        """`version` is that of the table in force; `arrivals_min` new arrivals are worth another lesson."""
        self._summarise = summarise
        self._submit = submit
        self._version = version
        self._interval_s = interval_s
        self._arrivals_min = arrivals_min
        self._noted = 0

    async def run(self) -> None:
        """Learn every `interval_s` until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.learn_once()

    async def learn_once(self) -> bool:
        """One lesson, if enough has arrived since the last; True if a table was submitted."""
        summary = self._summarise()
        if summary.noted - self._noted < self._arrivals_min:
            return False
        try:
            lesson = await run_programme(msgspec.msgpack.encode(summary), self._version + 1)
        except LessonError as error:
            logger.warning("prices were not learnt, and stay as they are: %s", error)
            return False
        self._noted = summary.noted
        if lesson is None:
            return False
        self._version += 1
        await self._submit(lesson.take_in())
        return True

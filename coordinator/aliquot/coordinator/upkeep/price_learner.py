"""Keeps prices up to date: what has arrived goes to the price programme, its table comes back as a command.

The programme (`price_programme`) runs in a process of its own for each lesson. Nothing of it stays in memory between
lessons, it ends with its input where the coordinator is killed, and a lesson that fails leaves the old prices in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np

from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.placement.worth import parts_of, remember
from aliquot.coordinator.programmes import ProgrammeError, run_programme


class Lesson(msgspec.Struct, frozen=True):
    """A table of prices. The worths are a convenience: whoever lacks them works them out."""

    table: PriceTable
    worths: tuple[tuple[DeviceClass, bytes], ...] = ()
    """`worth_on(table, class)`, as 32-bit integers."""

    def take_in(self) -> PriceTable:
        """Remember the worths; returns the table."""
        share_parts, memory_parts = parts_of(by_memory=self.table.by_memory)
        for device_class, raw in self.worths:
            shape = share_parts + 1, memory_parts + 1, len(self.table.cpu_prices)
            worth = np.frombuffer(raw, np.int32).reshape(shape).astype(np.int64)
            remember(self.table, device_class, worth)
        return self.table


logger = logging.getLogger(__name__)

INTERVAL_S = 30.0
FIRST_LESSON = 10
"""Arrivals before the first prices, here and in replays. Of 10, 25 and 50 the best where most demand is for several
devices: nodes that few can use are in use before anybody knows what they are worth."""

LESSON_MAX_S = 60.0
"""The programme takes a second to start, and up to ten where cards differ in memory; one that hangs is ended."""

CHANGED_MILLI = 50
"""Of a device: where so much of each has been taken or given back on average, what is short may be something else."""

PROGRAMME = "aliquot.coordinator.upkeep.price_programme"


async def run_lesson(summary: bytes, version: int) -> Lesson | None:
    """One lesson in a process of its own; None where the mix teaches nothing. Raises ProgrammeError."""
    out = await run_programme(PROGRAMME, summary, str(version), within_s=LESSON_MAX_S)
    try:
        return msgspec.msgpack.decode(out, type=Lesson) if out else None
    except msgspec.MsgspecError as error:
        raise ProgrammeError(f"it says nothing that makes sense: {error}") from error


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
        arrivals_min: int = 200,
    ) -> None:
        """`version` is that of the table in force; `arrivals_min` new arrivals are worth another lesson. Where there
        was no table, the first comes after `FIRST_LESSON` arrivals, and others each time these have doubled.
        """
        self._summarise = summarise
        self._submit = submit
        self._version = version
        self._arrivals_min = arrivals_min
        self._early = not version
        self._noted = 0
        self._idle_milli = 0

    async def run(self) -> None:
        """Learn every `INTERVAL_S` until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.learn_once()

    def _enough(self) -> int:
        """New arrivals that are worth a lesson."""
        return min(max(FIRST_LESSON, self._noted), self._arrivals_min) if self._early else self._arrivals_min

    async def learn_once(self) -> bool:
        """One lesson, if enough has arrived since the last; True if a table was submitted."""
        summary = self._summarise()
        idle_milli = sum(each.idle_milli for each in summary.classes)
        devices = sum(each.devices for each in summary.classes)
        changed = abs(idle_milli - self._idle_milli) >= devices * CHANGED_MILLI
        new = summary.noted - self._noted
        if new < self._enough() and not (changed and self._noted and new):
            return False
        try:
            lesson = await run_lesson(msgspec.msgpack.encode(summary), self._version + 1)
        except ProgrammeError as error:
            logger.warning("prices were not learnt, and stay as they are: %s", error)
            return False
        self._noted, self._idle_milli = summary.noted, idle_milli
        if lesson is None:
            return False
        self._version += 1
        await self._submit(lesson.take_in())
        return True

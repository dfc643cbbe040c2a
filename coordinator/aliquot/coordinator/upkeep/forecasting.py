"""Takes down demand by the hour, and has it forecast, and the starts of what waits, by programmes of their own.

A programme that dies, hangs or says nonsense changes nothing: what was said before stands until its hours are over. No
decision looks at a forecast (`reading.forecasts`), so none can be harmed by one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.books.demand import HOUR_MS, POINTS_MAX, WHOLE, ExpectedUse, Forecast
from aliquot.coordinator.core.commands import ExpectDemand, Expected, NoteDemand
from aliquot.coordinator.programmes import ProgrammeError, run_programme
from aliquot.coordinator.reading.demand import DemandMeter
from aliquot.coordinator.reading.forecasts import DemandForecasts, StartForecasts
from aliquot.coordinator.reading.line import line_of, waiting_of
from aliquot.coordinator.reading.view import View
from aliquot.forecast.messages import Answer, Answers, Question
from aliquot.forecast.starts import middle

PROGRAMME = "aliquot.forecast.programme"
CLASS = "class/"
FIRST_AFTER_S = 30.0
"""After a take-over there is more urgent work."""
STARTS_EVERY_S = 60.0
DEMAND_WITHIN_S = 600.0
STARTS_WITHIN_S = 60.0
TIMES_MAX = 1_000
"""A forecast of so many times the most that was ever demanded is nonsense."""
LEAST_MILLI = 1_000_000

T = TypeVar("T")
Run = Callable[..., Awaitable[bytes]]


class Forecaster:
    """Three tasks of a coordinator that leads."""

    def __init__(
        self,
        *,
        view: View,
        clock: Clock,
        demand: DemandForecasts,
        starts: StartForecasts,
        submit: Callable[[ExpectDemand], Awaitable[object]],
        tell: Callable[[str, str], None],
        run: Run = run_programme,
    ) -> None:
        """`submit` has nodes ordered earlier than anybody waits for them, where that is allowed; `tell` is told of the
        duties `forecast-demand` and `forecast-starts`, and why they fail.
        """
        self._view = view
        self._clock = clock
        self._demand = demand
        self._starts = starts
        self._submit = submit
        self._tell = tell
        self._run = run
        self._noted = asyncio.Event()

    async def note(self, meter: DemandMeter, submit: Callable[[NoteDemand], Awaitable[object]]) -> None:
        """Take down each hour when it is over, until cancelled. One that can't be written down is a hole."""
        while True:
            hour = self._clock.now_ms() // HOUR_MS
            await asyncio.sleep(max((hour + 1) * HOUR_MS - self._clock.now_ms(), 0) / 1000)
            if self._clock.now_ms() < (hour + 1) * HOUR_MS:
                continue
            with contextlib.suppress(AliquotError):
                await submit(meter.take(hour))
            self._noted.set()

    async def forecast(self) -> None:
        """Forecast demand soon, and then whenever an hour is over, until cancelled."""
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            self._noted.clear()
            await self.forecast_once()
            await self._noted.wait()

    async def forecast_once(self) -> bool:
        """False: there is nothing to forecast from, or no answer."""
        books = self._view.books.demand
        series = books.series()
        if not series:
            return False
        hour = books.latest
        by_demand = sorted(series, key=lambda name: (name != WHOLE, -(series[name][-1] or 0), name))
        ordered = {name: series[name] for name in by_demand}
        answers = await self._ask("demand", Question(ordered), Answers, DEMAND_WITHIN_S)
        if answers is None:
            return False
        found = {name: answer for name, answer in answers.series.items() if sound(answer, series.get(name))}
        self._demand.take(hour, found)
        expected = expected_of(hour, found)
        if expected.series:
            with contextlib.suppress(AliquotError):
                await self._submit(expected)
        return True

    async def expect(self) -> None:
        """Say when what waits will start, once a minute while something waits, until cancelled."""
        while True:
            await asyncio.sleep(STARTS_EVERY_S)
            await self.expect_once()

    async def expect_once(self) -> bool:
        """False: nothing waits, or no answer."""
        now_ms = self._clock.now_ms()
        line = line_of(self._view, now_ms) if self._view.totals.queued else None
        if line is None:
            self._starts.take(now_ms, {}, {})
            return False
        found = await self._ask("starts", line, dict[str, tuple[float, ...]], STARTS_WITHIN_S)
        if found is None:
            return False
        expected = {name: middle(starts) for name, starts in found.items() if starts and min(starts) >= 0}
        self._starts.take(now_ms, expected, waiting_of(self._view, expected))
        return True

    async def _ask(self, kind: str, question: object, answer: type[T], within_s: float) -> T | None:
        try:
            out = await self._run(PROGRAMME, msgspec.msgpack.encode(question), kind, within_s=within_s)
            found, why = msgspec.msgpack.decode(out, type=answer), ""
        except (ProgrammeError, msgspec.MsgspecError) as error:
            found, why = None, str(error)
        self._tell(f"forecast-{kind}", why)
        return found


def expected_of(hour: int, answers: Mapping[str, Answer]) -> ExpectDemand:
    """What the decider of nodes is told: of each model in each pool, and only what keeps its word is fit for it."""
    found: list[Expected] = []
    for name, answer in answers.items():
        if name.startswith(CLASS):
            pool, _, model = name.removeprefix(CLASS).rpartition("/")
            points = tuple(
                ExpectedUse(
                    (hour + 1 + index) * HOUR_MS, milli, _or(answer.low[index], milli), _or(answer.high[index], milli)
                )
                for index, milli in enumerate(answer.middle[:POINTS_MAX])
            )
            fit = answer.method == "median" and answer.score.origins > 0
            found.append(Expected(pool, model, Forecast((hour + 1) * HOUR_MS, points, fit)))
    return ExpectDemand(tuple(found))


def _or(bound: int | None, milli: int) -> int:
    return milli if bound is None else bound


def sound(answer: Answer, hours: list[int | None] | None) -> bool:
    """Whether an answer can be one at all."""
    if hours is None:
        return False
    most = TIMES_MAX * max(max((hour or 0 for hour in hours), default=0), LEAST_MILLI)
    columns: tuple[list[int | None], ...] = (list(answer.middle), answer.low, answer.high)
    length = len(answer.middle)
    return length > 0 and all(
        len(column) == length and all(value is None or 0 <= value <= most for value in column) for column in columns
    )

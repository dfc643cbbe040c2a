"""Forecasts as messages."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.demand import HOUR_MS, DemandBooks
from aliquot.coordinator.core.commands.outcomes import QUOTA
from aliquot.coordinator.reading.forecasts import DemandForecasts, Start
from aliquot.forecast.backtest import Score
from aliquot.forecast.messages import Answer
from aliquot.v1 import pool_pb2, types_pb2

_TENANT = "tenant/"


def forecast_message(
    forecasts: DemandForecasts, books: DemandBooks, only: str | None, may: Callable[[str], bool]
) -> pool_pb2.ForecastResponse:
    """What is expected, of what the caller may see; with the past where `only` names a series."""
    response = pool_pb2.ForecastResponse(
        from_ms=(forecasts.hour + 1) * HOUR_MS if forecasts.hour >= 0 else 0, hours_known=len(books.numbers)
    )
    past = books.series() if only is not None else {}
    found: dict[str, Answer | None] = dict(forecasts.series) if only is None else {only: forecasts.series.get(only)}
    for name, answer in found.items():
        if name.startswith(_TENANT) and not may(name.removeprefix(_TENANT)):
            continue
        if answer is None and name not in past:
            continue
        kind, _, rest = name.partition("/")
        message = response.series.add(kind=kind, name=rest)
        history = past.get(name, [])
        first = books.latest + 1 - len(history)
        message.hours.extend(
            pool_pb2.ForecastHour(start_ms=(first + index) * HOUR_MS, milli=milli, past=True)
            for index, milli in enumerate(history)
        )
        if answer is not None:
            _write_answer(message, answer, forecasts.hour + 1)
    return response


def _write_answer(message: pool_pb2.ForecastSeries, answer: Answer, first: int) -> None:
    message.method = answer.method
    for index, milli in enumerate(answer.middle):
        message.hours.add(
            start_ms=(first + index) * HOUR_MS,
            milli=milli,
            low_milli=answer.low[index],
            high_milli=answer.high[index],
        )
    if answer.score.origins:
        _SCORE.write(message.score, answer.score)


_SCORE = Writer(pool_pb2.ForecastScore, Score)


def write_start(message: types_pb2.Explanation, start: Start) -> None:
    """When a request that waits is expected to start, unless what is known of the pool says it for certain, a limit of
    its own is in the way, or nothing is known yet of how wrong such forecasts are.
    """
    if message.HasField("expected_start_ms") and not message.ahead:
        return
    limited = any(missing.reason == QUOTA for missing in message.missing)
    if limited or start.earliest_ms is None or start.latest_ms is None or start.expected_ms <= start.said_ms:
        return
    message.expected_start_ms = start.expected_ms
    message.earliest_start_ms = start.earliest_ms
    message.latest_start_ms = start.latest_ms
    message.start_unknown = ""

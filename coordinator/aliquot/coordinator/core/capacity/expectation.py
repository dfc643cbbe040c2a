"""What is expected to be used, as a forecast says: kept in the planner's memory, and believed only while it is fit.

A forecast only has nodes ordered earlier, and keeps them from being given back just before they are needed. Dropping
it, or one that says of itself that it is unfit, leaves what the queue itself asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

STALE_MS = 6 * 3_600_000
"""A forecast that was not renewed for so long is not believed any more."""
FORECASTS_MAX = 1_024
POINTS_MAX = 24 * 14


class ExpectedUse(NamedTuple):
    """How much of a model is expected to be used in a pool at a time, with an interval, in thousandths of devices."""

    at_ms: int
    milli: int
    low_milli: int
    high_milli: int


class Forecast(NamedTuple):
    """One series."""

    made_ms: int
    points: tuple[ExpectedUse, ...]
    """By time."""
    fit: bool
    """Whether its intervals have covered what came, lately."""


class Forecasts:
    """By pool and model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Forecast] = {}

    def put(self, pool: str, model: str, forecast: Forecast) -> None:
        """Take a series instead of the earlier one."""
        self._known.pop((pool, model), None)
        self._known[pool, model] = forecast
        while len(self._known) > FORECASTS_MAX:
            del self._known[next(iter(self._known))]

    def of(self, now_ms: int) -> Iterator[tuple[str, str]]:
        """The series that are believed."""
        return (key for key, each in sorted(self._known.items()) if each.fit and each.made_ms + STALE_MS > now_ms)

    def wanted_milli(self, pool: str, model: str, from_ms: int, to_ms: int) -> int:
        """The most that is expected to be used between these times; 0: nothing is known."""
        forecast = self._known.get((pool, model))
        if forecast is None or not forecast.fit or forecast.made_ms + STALE_MS <= from_ms:
            return 0
        before = [point for point in forecast.points if point.at_ms <= from_ms][-1:]
        within = [point for point in forecast.points if from_ms < point.at_ms <= to_ms]
        return max((point.milli for point in (*before, *within)), default=0)

"""Intervals around a forecast that cover as much as they say, whatever the forecaster: adaptive conformal ones.

For each hour ahead: the errors that were made lately at that distance, with their signs, give what lies around the next
forecast. How far out one must go among them is corrected after every outcome: a miss widens the interval, a hit narrows
it a little (Gibbs and Candès, 2021), so that coverage holds in the long run also where demand changes its ways.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from aliquot.forecast.models import Floats

ERRORS_MAX = 80
"""Latest errors looked at."""
ERRORS_MIN = 10
"""With fewer, no interval is given."""
ADAPTING = 0.02
"""How much of a miss goes into the correction: the rate that the literature calls gamma."""
BEYOND = 1.25
"""Where even the largest error is too near, this many times of it."""


class HourAhead:
    """The errors at one distance, and the correction that they have led to."""

    __slots__ = ("_adapting", "_covered", "_errors", "_outside")

    def __init__(self, covered: float, *, adapting: float = ADAPTING, errors_max: int = ERRORS_MAX) -> None:
        """`covered`: the part of outcomes that intervals should hold, 0.9 for one."""
        self._errors: deque[float] = deque(maxlen=errors_max)
        self._adapting = adapting
        self._covered = covered
        self._outside = 1 - covered

    def around(self) -> tuple[float, float] | None:
        """(how far below, how far above a forecast), both with their signs; None: too few errors are known."""
        count = len(self._errors)
        if count < ERRORS_MIN:
            return None
        ordered = sorted(self._errors)
        low, high = _quantile(ordered, self._outside / 2), _quantile(ordered, 1 - self._outside / 2)
        return min(low, 0.0), max(high, 0.0)

    def learn(self, error: float) -> None:
        """An outcome: what it was less what was forecast."""
        around = self.around()
        if around is not None:
            hit = around[0] <= error <= around[1]
            goal = 1 - self._covered
            self._outside = min(max(self._outside + self._adapting * (goal - (0.0 if hit else 1.0)), 0.0), 0.5)
        self._errors.append(error)


class Intervals:
    """All hours ahead of one series, fed in the order of time."""

    def __init__(self, ahead: int, covered: float = 0.9) -> None:
        self._hours = [HourAhead(covered) for _ in range(ahead)]
        self._open: deque[tuple[int, Floats]] = deque()

    def forecast(self, at: int, values: Floats) -> tuple[Floats, Floats]:
        """A forecast made at hour `at`: (low, high) for each of its hours, NaN where nothing can be said yet. Its
        outcomes are learnt as `outcome` brings them.
        """
        self._open.append((at, values))
        around = [hour.around() or (math.nan, math.nan) for hour in self._hours]
        offsets = np.array(around)
        return np.maximum(values + offsets[:, 0], 0.0), values + offsets[:, 1]

    def outcome(self, hour: int, value: float) -> None:
        """Hour `hour` is over: `value` is what forecasts made at `at` said as their `hour - at`-th. NaN: not known."""
        while self._open and self._open[0][0] + len(self._hours) < hour:
            self._open.popleft()
        if math.isnan(value):
            return
        for at, values in self._open:
            ahead = hour - at
            if 1 <= ahead <= len(self._hours):
                self._hours[ahead - 1].learn(value - float(values[ahead - 1]))


def _quantile(ordered: list[float], part: float) -> float:
    """With the correction for how few there are; beyond the outermost error, a multiple of it."""
    position = part * (len(ordered) + 1) - 1
    if position <= 0:
        return ordered[0] if position > -0.5 else ordered[0] * (BEYOND if ordered[0] < 0 else 1)
    if position >= len(ordered) - 1:
        last = ordered[-1]
        return last if position < len(ordered) - 0.5 else last * (BEYOND if last > 0 else 1)
    below = int(position)
    return ordered[below] + (position - below) * (ordered[below + 1] - ordered[below])

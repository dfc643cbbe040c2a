"""How good forecasts were: the same forecaster at many earlier hours, with what was known then.

Compared with the better of two that cost nothing: the last value, and the same hour of the day before. A forecast that
does not beat that is of no use, however small its error looks.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from aliquot.forecast.intervals import Intervals
from aliquot.forecast.models import DAY, FIT_HOURS, LEARN_HOURS, Floats, last_value, median_forecast, same_hour

Truths = npt.NDArray[np.bool_]

EVERY_HOURS = 5
"""Between two origins. It has no factor in common with a day, so that each hour of the day is begun at."""
COVERED = 0.9
HIGH = (1 + COVERED) / 2
"""The quantile that the upper end of an interval stands for."""
TRUSTED_COVERAGE = 0.8
"""Where the latest week's intervals held less than this of what came, the forecast withdraws itself."""
TRUSTED_AFTER = 50
"""Outcomes of the latest week without which that is not judged."""


class Score(msgspec.Struct, frozen=True):
    """What a back-test found about one series."""

    origins: int = 0
    mae: float = 0.0
    """Mean absolute error over the hours ahead."""
    ratio: float = 0.0
    """Of `mae` to that of the same hour of the day before."""
    ratio_6h: float = 0.0
    """The same for the first six hours ahead."""
    mase: float = 0.0
    """Of `mae` to that of the better naive forecast."""
    pinball: float = 0.0
    """Mean pinball loss of the upper end, over the mean of the series; 0: no intervals."""
    coverage: float = 0.0
    """Part of the outcomes within their intervals."""
    coverage_1h: float = 0.0
    coverage_6h: float = 0.0
    coverage_24h: float = 0.0
    coverage_week: float = 0.0
    """Of the latest week alone."""
    covered_week: int = 0
    """Outcomes that this rests on."""

    @property
    def trusted(self) -> bool:
        """Whether the latest week's intervals have kept their word."""
        return self.covered_week < TRUSTED_AFTER or self.coverage_week >= TRUSTED_COVERAGE


class Trial(NamedTuple):
    """The forecasts of a back-test: [origins] hours at which they were made, [origins, ahead] what they said."""

    origins: list[int]
    middle: Floats
    low: Floats
    high: Floats
    intervals: Intervals
    """As they are after all outcomes."""


def try_out(hours: Floats, ahead: int = DAY, *, every: int = EVERY_HOURS, first: int = LEARN_HOURS) -> Trial:
    """Forecast again and again from the hour `first` on, each time with the hours before alone."""
    intervals = Intervals(ahead, COVERED)
    origins: list[int] = []
    rows: list[tuple[Floats, Floats, Floats]] = []
    for hour in range(len(hours) + 1):
        if hour:
            intervals.outcome(hour, float(hours[hour - 1]))
        if hour >= first and (hour - first) % every == 0 and hour < len(hours):
            values = median_forecast(hours[:hour], ahead)
            rows.append((values, *intervals.forecast(hour, values)))
            origins.append(hour)
    if not rows:
        empty = np.zeros((0, ahead))
        return Trial([], empty, empty, empty, intervals)
    middle, low, high = (np.array(column) for column in zip(*rows, strict=True))
    return Trial(origins, middle, low, high, intervals)


def score(hours: Floats, trial: Trial, *, first: int = FIT_HOURS) -> Score:
    """Judge the forecasts made at the hour `first` and later whose outcomes are all known."""
    ahead = trial.middle.shape[1]
    chosen = [row for row, origin in enumerate(trial.origins) if first <= origin <= len(hours) - ahead]
    if not chosen:
        return Score()
    starts = np.array([trial.origins[row] for row in chosen])
    truth = hours[starts[:, None] + np.arange(ahead)]
    errors = np.abs(trial.middle[chosen] - truth)
    seasonal = np.abs(np.array([same_hour(hours[:start], ahead) for start in starts]) - truth)
    naive = np.abs(np.array([last_value(hours[:start], ahead) for start in starts]) - truth)
    low, high = trial.low[chosen], trial.high[chosen]
    known = ~np.isnan(high)
    inside = (truth >= low) & (truth <= high)
    over = truth - high
    pinball = np.where(over > 0, HIGH * over, (HIGH - 1) * over)[known]
    week = known & (starts[:, None] >= len(hours) - 7 * DAY - ahead)
    mae, typical = float(errors.mean()), max(float(np.abs(truth).mean()), 1e-9)
    return Score(
        origins=len(chosen),
        mae=mae,
        ratio=mae / max(float(seasonal.mean()), 1e-9),
        ratio_6h=float(errors[:, :6].mean()) / max(float(seasonal[:, :6].mean()), 1e-9),
        mase=mae / max(min(float(seasonal.mean()), float(naive.mean())), 1e-9),
        pinball=float(pinball.mean()) / typical if pinball.size else 0.0,
        coverage=_part(inside, known),
        coverage_1h=_part(inside[:, :1], known[:, :1]),
        coverage_6h=_part(inside[:, 5:6], known[:, 5:6]),
        coverage_24h=_part(inside[:, 23:24], known[:, 23:24]),
        coverage_week=_part(inside, week),
        covered_week=int(week.sum()),
    )


def _part(inside: Truths, known: Truths) -> float:
    return float(inside[known].mean()) if known.any() else 0.0

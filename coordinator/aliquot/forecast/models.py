"""Four cheap forecasters of an hourly series, and the median of them (decision 0075).

Each takes the hours so far, the latest last and none missing, and gives the next ones. Where one goes wrong (a step in
demand that no history knows, a week unlike the last) the others outvote it: that is all that the median is for. All
begin at the last value and move away from it as far as history justifies, because it is what is hardest to beat for
the next few hours.

- `last_value`: nothing changes.
- `weekly`, `daily`, `unshaped`: for each hour ahead a regression of the change on what some of these say of it: the
  same hour of yesterday and of last week, the median day, the means of a day and of a week, the latest change. Absolute
  errors are minimised (demand jumps, and squares would follow the jumps), by iteratively reweighted least squares, and
  coefficients are shrunk towards none, that is towards the last value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DAY = 24
WEEK = 7 * DAY
FIT_HOURS = 28 * DAY
"""So much history is fitted: longer ago says little of demand, and four weeks show a week four times."""
LEARN_HOURS = 3 * DAY
"""With less than this, the last value is all that is said."""
SHRINK = 0.1
"""Weight of the penalty on coefficients, over that of all that was seen."""
ROUNDS = 4
"""Of reweighting; more of them change the forecast by less than a per cent of its error."""

Forecaster = Callable[[Floats, int], Floats]
"""(hours so far, how many hours ahead) -> those hours."""
Feature = Callable[[Floats, Ints, Ints], Floats]
"""(series, known hours [1, n], hours ahead [h, 1]) -> [h, n], or what broadcasts to it: what one thing says of the
change since the known hour."""


def last_value(hours: Floats, ahead: int) -> Floats:
    """Nothing changes."""
    return np.full(ahead, hours[-1])


def same_hour(hours: Floats, ahead: int) -> Floats:
    """The same hour of the day before: the seasonal naive forecast, which others are compared with."""
    return np.resize(hours[-DAY:], ahead) if len(hours) >= DAY else last_value(hours, ahead)


def profile_of(hours: Floats) -> Floats:
    """[24] how the median day departs from its own mean, beginning with the hour after the last."""
    days = len(hours) // DAY
    if not days:
        return np.zeros(DAY)
    table = hours[-days * DAY :].reshape(days, DAY)
    profile = np.median(table - table.mean(axis=1, keepdims=True), axis=0)
    return np.asarray(profile - profile.mean(), np.float64)


# -- what says something of a change


def _yesterday(hours: Floats, known: Ints, ahead: Ints) -> Floats:
    return np.asarray(hours[known + ahead - DAY * -(-ahead // DAY)] - hours[known], np.float64)


def _last_week(hours: Floats, known: Ints, ahead: Ints) -> Floats:
    return np.asarray(hours[known + ahead - WEEK * -(-ahead // WEEK)] - hours[known], np.float64)


def _median_day(hours: Floats, known: Ints, ahead: Ints) -> Floats:
    profile = profile_of(hours)
    first = -len(hours) % DAY  # where in the profile the series begins
    return np.asarray(profile[(known + ahead + first) % DAY] - profile[(known + first) % DAY], np.float64)


def _mean_of(span: int, hours: Floats, known: Ints, ahead: Ints) -> Floats:
    sums = np.concatenate([[0.0], np.cumsum(hours)])
    since = np.maximum(known + 1 - span, 0)
    return np.asarray((sums[known + 1] - sums[since]) / (known + 1 - since) - hours[known], np.float64)


def _latest_change(hours: Floats, known: Ints, ahead: Ints) -> Floats:
    return np.asarray(hours[known] - hours[np.maximum(known - 1, 0)], np.float64)


_day_mean = partial(_mean_of, DAY)
_week_mean = partial(_mean_of, WEEK)


# -- the forecasters that look at them


def weekly(hours: Floats, ahead: int) -> Floats:
    """With last week, where there are two of them."""
    if len(hours) < 2 * WEEK or ahead > WEEK:
        return daily(hours, ahead)
    return _regress(hours, ahead, (_yesterday, _last_week, _median_day, _week_mean, _latest_change), WEEK)


def daily(hours: Floats, ahead: int) -> Floats:
    """Without last week."""
    return _regress(hours, ahead, (_yesterday, _median_day, _day_mean, _week_mean, _latest_change), DAY)


def unshaped(hours: Floats, ahead: int) -> Floats:
    """Without the median day: for demand whose days are unlike one another."""
    if len(hours) < 2 * WEEK or ahead > WEEK:
        return _regress(hours, ahead, (_yesterday, _day_mean, _week_mean, _latest_change), DAY)
    return _regress(hours, ahead, (_yesterday, _last_week, _day_mean, _week_mean, _latest_change), WEEK)


FORECASTERS: tuple[Forecaster, ...] = (last_value, weekly, daily, unshaped)


def median_forecast(hours: Floats, ahead: int, forecasters: Sequence[Forecaster] = FORECASTERS) -> Floats:
    """The median of the forecasters, never below zero; the last value where there is too little history."""
    hours = hours[-FIT_HOURS:]
    if len(hours) < LEARN_HOURS:
        return last_value(hours, ahead)
    each = np.array([forecaster(hours, ahead) for forecaster in forecasters])
    return np.asarray(np.maximum(np.median(each, axis=0), 0.0), np.float64)


def _regress(hours: Floats, ahead: int, features: Sequence[Feature], first: int) -> Floats:
    """A regression for each hour ahead, all at once; `first` is the earliest hour that all features know."""
    last = len(hours) - 1
    steps = np.arange(1, ahead + 1)[:, None]
    known = np.arange(first, last)[None, :]
    shape = (ahead, known.shape[1])
    there = known + steps <= last
    design = np.stack([np.broadcast_to(feature(hours, known, steps), shape) for feature in features], axis=2)
    design = np.where(there[:, :, None], design, 0.0)
    change = np.where(there, hours[np.minimum(known + steps, last)] - hours[known], 0.0)
    scale = np.sqrt((design**2).sum(axis=1) / np.maximum(there.sum(axis=1), 1)[:, None]) + 1e-9
    design /= scale[:, None, :]
    typical = max(float(np.abs(hours).mean()), 1e-6)
    floor = np.maximum(np.median(np.abs(change), axis=1), 1e-3 * typical)[:, None]
    weights = there / floor
    coefficients = np.zeros((ahead, len(features), 1))
    for _ in range(ROUNDS):
        weighted = np.swapaxes(design * weights[:, :, None], 1, 2)
        penalty = (SHRINK * weights.sum(axis=1) + 1e-12)[:, None, None] * np.eye(len(features))
        coefficients = np.linalg.solve(weighted @ design + penalty, weighted @ change[:, :, None])
        misses = np.abs(change - (design @ coefficients)[:, :, 0])
        weights = there / np.maximum(misses, floor)
    now = np.array([[last]])
    latest = [np.broadcast_to(feature(hours, now, steps), (ahead, 1))[:, 0] for feature in features]
    return np.asarray(hours[-1] + (np.stack(latest, axis=1) / scale * coefficients[:, :, 0]).sum(axis=1), np.float64)

"""Histories with holes: hours that nobody saw, because the coordinator was away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aliquot.forecast.models import DAY, Floats

SHORT_HOURS = 3
"""A hole so short is bridged; a longer one is filled by the same hours of the day before."""
KNOWN_LEAST = 0.5
"""With less than this part of the latest week known, history begins after the holes."""


def filled(hours: Sequence[int | float | None]) -> Floats:
    """The series with its holes filled, from its first known hour to its last one that is known."""
    values = np.array([np.nan if hour is None else float(hour) for hour in hours], np.float64)
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.zeros(0)
    values = _without_ruins(values[known[0] : known[-1] + 1])
    index = 0
    while index < len(values):
        if not np.isnan(values[index]):
            index += 1
            continue
        end = index
        while np.isnan(values[end]):
            end += 1
        if end - index > SHORT_HOURS and index >= DAY:
            for hour in range(index, end):
                values[hour] = values[hour - DAY]
        else:
            values[index:end] = np.linspace(values[index - 1], values[end], end - index + 2)[1:-1]
        index = end
    return values


def _without_ruins(values: Floats) -> Floats:
    """What comes after the last stretch of a week that is mostly holes."""
    week = 7 * DAY
    for begin in range(len(values) - week, -1, -DAY):
        if np.isnan(values[begin : begin + week]).mean() > 1 - KNOWN_LEAST:
            rest = values[begin + week :]
            known = np.flatnonzero(~np.isnan(rest))
            if len(known):
                return rest[known[0] :]
            last = np.flatnonzero(~np.isnan(values))
            return values[last[-1] :]
    return values

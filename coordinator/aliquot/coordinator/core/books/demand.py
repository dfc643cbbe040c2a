"""Demand by the hour, as the journal keeps it.

Demand is what leases hold and what requests wait for, in thousandths of devices, as the mean over an hour (UTC, so that
no day has 23 or 25 of them). The ledger can't say it: it knows what was charged, not what waited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand

HOUR_MS = 3_600_000
HOURS_MAX = 45 * 24
"""Kept: enough to fit four weeks, and to try that out at every hour of the two weeks before."""
SERIES_MAX = 100
"""In one hour: the whole, and those with most demand. Some 10 MB in all."""
WHOLE = ""
"""The name of the series of everything; others are `pool/NAME`, `model/NAME`, `tenant/NAME`, and `class/POOL/MODEL`
for the devices of a model in a pool."""
LEAST_COVERED_PERMILLE = 500
"""Of an hour that was seen: with less its mean is not known."""

Hour = tuple[tuple[str, int], ...]
"""(series, thousandths of devices), those of no demand left out."""


def most_of(milli: Mapping[str, int]) -> Hour:
    """An hour as it is kept: within its bound, in a fixed order."""
    there = [(name, value) for name, value in milli.items() if value > 0 and name]
    there.sort(key=lambda pair: (-pair[1], pair[0]))
    return ((WHOLE, milli.get(WHOLE, 0)), *sorted(there[: SERIES_MAX - 1]))


class DemandBooks:
    """Hours since the epoch, rising; those that are not there are not known."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.hours: list[Hour] = []
        self._names: dict[str, str] = {}

    def note(self, number: int, hour: Hour) -> None:
        """An hour is over. Does nothing for one that is not after the last."""
        if self.numbers and number <= self.numbers[-1]:
            return
        self.numbers.append(number)
        self.hours.append(tuple((self._names.setdefault(name, name), value) for name, value in hour))
        gone = bisect_left(self.numbers, number - HOURS_MAX + 1)
        if gone:
            del self.numbers[:gone], self.hours[:gone]

    @property
    def latest(self) -> int:
        """The number of the last hour; -1: none is known."""
        return self.numbers[-1] if self.numbers else -1

    def after(self, number: int) -> tuple[tuple[int, Hour], ...]:
        """The hours after that one."""
        first = bisect_left(self.numbers, number + 1)
        return tuple(zip(self.numbers[first:], self.hours[first:], strict=True))

    def series(self) -> dict[str, list[int | None]]:
        """By name: thousandths from the first hour to the last, None where an hour is not known. A series begins with
        its first demand.
        """
        if not self.numbers:
            return {}
        last = self.numbers[-1]
        found: dict[str, list[int | None]] = {}
        begun: dict[str, int] = {}
        for number, hour in zip(self.numbers, self.hours, strict=True):
            for name, milli in hour:
                if name not in found:
                    begun[name] = number
                    found[name] = [None] * (last + 1 - number)
                found[name][number - begun[name]] = milli
        known = set(self.numbers)
        for name, values in found.items():
            since = begun[name]
            for index, value in enumerate(values):
                if value is None and since + index in known:
                    values[index] = 0
        return found


# --------------------
# What has happened to demand.


class DemandNoted(Fact, frozen=True, tag="demand"):
    """An hour (number `hour` since the epoch) is over, and this was the mean demand in it, by series."""

    hour: int
    milli: tuple[tuple[str, int], ...]


# --------------------
# What was asked for and granted lately: an index, from which it is told what will be asked for before a node can
# come. Requests are noted when they are granted, at the time at which they were made: what a limit or a budget
# keeps out asks for no node.


KEPT_MAX = 4_096
"""Requests; older ones are forgotten."""


class RecentDemand:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._noted: deque[tuple[int, Demand]] = deque(maxlen=KEPT_MAX)

    def note(self, asked_ms: int, demand: Demand) -> None:
        """A request was granted for the first time."""
        if not demand.node_ids and not demand.opportunistic:
            self._noted.append((asked_ms, demand))

    def since(self, from_ms: int) -> Iterator[tuple[int, Demand]]:
        """(when it was asked for, what), of those granted last; about in the order of time, the latest first."""
        for asked_ms, demand in reversed(self._noted):
            if asked_ms >= from_ms:
                yield asked_ms, demand


# --------------------
# What is expected to be used, as a forecast says: kept in the decider's memory, and believed only while it is fit.
# A forecast only has nodes ordered earlier, and keeps them from being given back just before they are needed.
# Dropping it, or one that says of itself that it is unfit, leaves what the queue itself asks for.


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

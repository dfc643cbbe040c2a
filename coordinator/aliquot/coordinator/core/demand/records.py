"""Demand by the hour, as the journal keeps it.

Demand is what leases hold and what requests wait for, in thousandths of devices, as the mean over an hour (UTC, so that
no day has 23 or 25 of them). The ledger can't say it: it knows what was charged, not what waited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

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

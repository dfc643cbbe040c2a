"""Demand by the hour: as it was, and as it is expected to be."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Forecast", "ForecastHour", "ForecastScore", "ForecastSeries"]


@dataclass(frozen=True, slots=True)
class ForecastHour:
    """One hour, which begins at `start_ms` (Unix time)."""

    start_ms: int
    milli: int | None
    """Thousandths of devices that were held or waited for, or are expected to be; None: not known."""
    low_milli: int | None
    high_milli: int | None
    """Of an interval that holds 90 % of what comes; None: too little is known, or the hour is past."""
    past: bool


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """How forecasts of 24 hours, each made with what was known then, compare with what came."""

    origins: int
    """So many were made."""
    mase: float
    """Mean absolute error over that of the better naive one: the last value, or the same hour of the day before."""
    ratio: float
    """Over that of the same hour of the day before."""
    ratio_6h: float
    """The same for the first six hours."""
    pinball: float
    """Loss of the upper bound over mean demand."""
    coverage: float
    """Part of what came within the bounds."""
    coverage_1h: float
    coverage_6h: float
    coverage_24h: float
    coverage_week: float
    """Of the latest week."""


@dataclass(frozen=True, slots=True)
class ForecastSeries:
    """Of the whole, of a pool, of a model or of a tenant."""

    kind: str
    """pool, model, tenant; empty: the whole."""
    name: str
    method: str
    """`median`; `last`: too little is known for more; `withdrawn`: its bounds did not keep their word lately, so it is
    the last value, with headroom as its upper bound; empty: there is none."""
    hours: tuple[ForecastHour, ...]
    """The next 168, and before them the past where this series was asked for."""
    score: ForecastScore | None
    """None: it could not be tried out yet."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of demand. Nothing is decided by it."""

    from_ms: int
    """Where the first hour ahead begins; 0: there is no forecast yet."""
    series: tuple[ForecastSeries, ...]
    """The whole first, then those of most demand."""
    hours_known: int
    """Of the past."""

"""What the pool does by itself as time passes: leading, turns of the clock, prices, books."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.books.demand import Forecast
from aliquot.coordinator.core.commands.base import Command
from aliquot.coordinator.core.commands.outcomes import AdmitOutcome, SetAside, TickOutcome
from aliquot.coordinator.core.placement.prices import PriceTable


class StartLeading(Command[None], frozen=True):
    """A coordinator has taken over with this epoch, which must be higher than any before."""

    leader_epoch: int


class RaiseEpoch(Command[None], frozen=True):
    """The coordinator that leads goes on in a higher epoch."""

    leader_epoch: int


class Admit(Command[AdmitOutcome], frozen=True):
    """Try the next waiting requests; `attempts` bounds the turn."""

    attempts: int = 16


class Tick(Command[TickOutcome], frozen=True):
    """Carry out what is due by now: time limits, back-offs, confirmations overdue, records to forget."""

    limit: int = 256


class RetrySetAside(Command[SetAside], frozen=True):
    """Try again what was set aside because deciding about it failed too often."""

    subject: str = ""
    """The lease, pool, tenant or window; empty: all that was set aside."""
    carry_out: bool = True
    """False: only say what there is."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One series of a forecast."""

    pool: str
    model: str
    forecast: Forecast


class ExpectDemand(Command[None], frozen=True):
    """What is expected to be used."""

    series: tuple[Expected, ...]


class CloseBooks(Command[None], frozen=True):
    """Sum up by day what ended before this midnight."""

    up_to_ms: int


class NoteDemand(Command[None], frozen=True):
    """An hour (since the epoch) is over; see `core.demand`. Changes nothing where that hour is known, or was not seen
    for long enough.
    """

    hour: int
    covered_permille: int
    """Of the hour that was seen."""
    milli: tuple[tuple[str, int], ...]
    """Series -> the mean, in thousandths of devices."""


class LearnPrices(Command[None], frozen=True):
    """New prices for the placement policy, with a version that rises."""

    table: PriceTable

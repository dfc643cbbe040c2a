"""Forecasts of demand and of starts, wired: what follows leases for them, makes them, and answers from them.

A part that the setting `forecast` names (`parts.py`). Without it no hour is taken down, and nobody is told anything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from aliquot.common.clock import Clock
from aliquot.common.gauges import Metric, gauge
from aliquot.coordinator.core.commands import ExpectDemand, NoteDemand
from aliquot.coordinator.reading.demand import DemandMeter
from aliquot.coordinator.reading.forecasts import DemandForecasts, StartForecasts
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.service import Foretelling
from aliquot.coordinator.upkeep.forecasting import Forecaster
from aliquot.coordinator.wire.forecasts import forecast_message, write_start
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import pool_pb2, types_pb2

_HOUR_S = 3600


class Forecasting(Foretelling):
    """Of a coordinator that leads. On its event loop, but for `collect`."""

    def __init__(self, view: View, clock: Clock, tell: Callable[[str, str], None]) -> None:
        """`tell` takes a duty, and why it fails."""
        self._tell = tell
        self._view = view
        self.meter = DemandMeter(clock, view.leases.values(), view.totals)
        self.demand, self.starts = DemandForecasts(), StartForecasts(clock)
        self._clock = clock

    @property
    def followers(self) -> tuple[Follower, ...]:
        """Who is told of what is durable."""
        return self.meter, self.starts

    def forecaster(self, submit: Callable[[ExpectDemand], Any]) -> Forecaster:
        """What makes them; `submit` has nodes ordered earlier than anybody waits for them, where that is allowed."""
        return Forecaster(
            view=self._view,
            clock=self._clock,
            demand=self.demand,
            starts=self.starts,
            submit=submit,
            tell=self._tell,
        )

    def tasks(self, writer: Writer) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What runs until the coordinator ends, by what it is called."""

        async def note(command: NoteDemand) -> object:
            return await writer.submit(command)

        forecaster = self.forecaster(writer.submit)
        return {
            "demand by the hour": forecaster.note(self.meter, note),
            "forecasts of demand": forecaster.forecast(),
            "forecasts of starts": forecaster.expect(),
        }

    # -- what is said from them

    def answer(self, only: str | None, may: Callable[[str], bool]) -> pool_pb2.ForecastResponse:
        """See `Foretelling`."""
        return forecast_message(self.demand, self._view.books.demand, only, may)

    def tell_start(self, lease_id: str, message: types_pb2.Explanation) -> None:
        """See `Foretelling`."""
        start = self.starts.of(lease_id)
        if start is not None:
            write_start(message, start)

    def collect(self) -> Iterator[Metric]:
        """As they are now. On the scraper's thread."""
        yield gauge(
            "aliquot_demand_milli", "Thousandths of devices that are held or waited for", value=self.meter.milli
        )
        yield gauge(
            "aliquot_demand_history_seconds",
            "How much of the past demand is known",
            value=len(self._view.books.demand.numbers) * _HOUR_S,
        )
        yield from self.demand.collect()
        yield from self.starts.collect()

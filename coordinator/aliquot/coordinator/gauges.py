"""Gauges of a coordinator that leads: what it is busy with, and how much it keeps in memory.

All that it keeps is bounded (`limits` in the settings). These gauges show how near each bound is, which tells a leak
from memory that fills up as intended. The scraper's thread reads them, one integer or length at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aliquot.common.gauges import Gauge, Metric, counter, measured
from aliquot.coordinator.agents.roster import Roster
from aliquot.coordinator.core.placement.accelerated import kernel
from aliquot.coordinator.core.state import State
from aliquot.coordinator.reading.fleet import Fleet
from aliquot.coordinator.reading.health import health_metrics
from aliquot.coordinator.reading.orders import order_metrics
from aliquot.coordinator.reading.use_totals import UseTotals
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.upkeep.sweep_timer import SweepTimer
from aliquot.coordinator.writing.writer import Writer


class LeadersGauges:
    """Those of all parts of a coordinator that leads."""

    def __init__(
        self,
        *,
        writer: Writer,
        roster: Roster,
        hub: WatchHub,
        fleet: Fleet,
        sweep_timer: SweepTimer,
        use: UseTotals,
        more: Iterable[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        """`more` are those of parts that can be left out."""

        def of_state(count: Callable[[State], int]) -> Callable[[], int]:
            return lambda: 0 if (state := writer.state) is None else count(state)

        self._hub = hub
        self._use = use
        self._more = tuple(more)
        self._writer = writer
        self._gauges: list[Gauge] = [
            ("aliquot_writer_queue", "Commands that wait to be decided", lambda: writer.queued),
            ("aliquot_agent_sessions", "Agents that are connected", lambda: len(roster)),
            ("aliquot_watchers", "Watch streams that are open", lambda: len(hub)),
            ("aliquot_fleet_watchers", "Streams of all devices as columns that are open", lambda: len(fleet)),
            ("aliquot_watch_waiting", "Changes that wait in the watchers' queues", lambda: hub.waiting),
            ("aliquot_watch_kept", "Changes that are kept for watchers who come late", lambda: hub.kept),
            ("aliquot_granting", "1 while anything is granted", lambda: int(writer.granting)),
            (
                "aliquot_set_aside",
                "Requests and due work on which deciding failed too often, until an administrator has them tried again",
                lambda: sum(trouble.set_aside for trouble in writer.troubles()),
            ),
            ("aliquot_scoring_compiled", "1 once placement scores by compiled code", lambda: int(bool(kernel()))),
            ("aliquot_loop_lag_seconds", "How late the last regular beat was", lambda: sweep_timer.lag_ms / 1000),
            (
                "aliquot_ledger_entries",
                "Usage, credits and corrections that are kept one by one",
                of_state(lambda state: len(state.ledger.entries)),
            ),
            ("aliquot_ledger_sums", "Sums of usage by the hour and by the day", of_state(_ledger_sums)),
        ]

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        yield from measured(self._gauges)
        state = self._writer.state
        if state is not None:
            yield from health_metrics(state.health)
            yield from order_metrics(state.supply)
        yield from self._use.collect()
        for collect in self._more:
            yield from collect()
        yield counter(
            "aliquot_watchers_compacted",
            "Watchers that were too slow, or had to begin anew, and list again",
            value=self._hub.compacted,
        )


def _ledger_sums(state: State) -> int:
    return sum(map(len, [*state.ledger.hours.values(), *state.ledger.closed.values()]))

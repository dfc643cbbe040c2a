"""What is expected of demand and of starts, as it was last worked out. Volatile: a coordinator works it out anew.

Nothing here decides anything: grants, guarantees and limits never look at it. What came of what was said is counted,
beside what doing without a forecast would have been wrong by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aliquot.common.clock import Clock
from aliquot.common.gauges import Metric, counter, gauge, gauges_by
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.outbox import Follower
from aliquot.forecast.messages import Answer
from aliquot.forecast.starts import Starts

SHOWN_MAX = 50
"""Series of which metrics are shown, those of most demand first."""
HOURS_SHOWN = (1, 6, 24)
SAID_MAX = 2_000
_OF_SCORES = (
    ("mase", "aliquot_forecast_mase", "Error of the forecast over that of the better naive one"),
    ("pinball", "aliquot_forecast_pinball", "Pinball loss of the upper bound over mean demand"),
    ("coverage_week", "aliquot_forecast_coverage", "Part of what came in the latest week within its bounds"),
)


@dataclass(frozen=True, slots=True)
class Start:
    """When a request that waits is expected to start."""

    said_ms: int
    expected_ms: int
    earliest_ms: int | None
    latest_ms: int | None
    """Of an interval that holds 90 % of what comes; None: too little is known of how wrong earlier ones were."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What was first said of a wait, to be compared with what comes of it."""

    at_ms: int
    expected_s: float
    around: tuple[float, float] | None
    last_wait_s: float


class DemandForecasts:
    """Of all series, from the hour after `hour` on."""

    def __init__(self) -> None:
        self.hour = -1
        """The last hour that they know (since the epoch); -1: there are none yet."""
        self.series: Mapping[str, Answer] = {}

    def take(self, hour: int, series: Mapping[str, Answer]) -> None:
        """New ones."""
        self.hour, self.series = hour, series

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        milli = gauge(
            "aliquot_forecast_milli",
            "Thousandths of devices that demand is expected to be; bound low and high hold 90 % of what comes",
            labels=["series", "ahead", "bound"],
        )
        shown = [(name or "all", found) for name, found in list(self.series.items())[:SHOWN_MAX]]
        for label, found in shown:
            for ahead in HOURS_SHOWN:
                for bound, values in (("middle", found.middle), ("low", found.low), ("high", found.high)):
                    value = values[ahead - 1] if ahead <= len(values) else None
                    if value is not None:
                        milli.add_metric([label, str(ahead), bound], value)
        yield milli
        for field, name, words in _OF_SCORES:
            scored = [([label], getattr(found.score, field)) for label, found in shown if found.score.origins]
            yield gauges_by(["series"], name, words, scored)
        yield gauges_by(
            ["series"],
            "aliquot_forecast_withdrawn",
            "1 where bounds did not keep their word: the last value, and headroom",
            [([label], int(found.method == "withdrawn")) for label, found in shown],
        )


class StartForecasts(Follower):
    """Of requests that wait, and how earlier ones have turned out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._intervals = Starts()
        self._now: dict[str, Start] = {}
        self._said: dict[str, _Said] = {}
        self._last_wait_s = 0.0
        self.begun = 0
        """Waits that were forecast and are over."""
        self.within = 0
        self.bounded = 0
        self.error_s = 0.0
        self.naive_error_s = 0.0

    def __len__(self) -> int:
        return len(self._said)

    def of(self, lease_id: str) -> Start | None:
        """What is expected of a request that waits."""
        return self._now.get(lease_id)

    def take(self, at_ms: int, expected: Mapping[str, float], waiting: Mapping[str, Lease]) -> None:
        """Seconds from `at_ms` on until each starts; of those that still wait."""
        self._now = {}
        for lease_id, expected_s in expected.items():
            lease = waiting.get(lease_id)
            if lease is None or not lease.waiting or lease.ended:
                continue
            around = self._intervals.around(expected_s)
            low, high = (None, None) if around is None else (at_ms + int(1000 * part) for part in around)
            self._now[lease_id] = Start(at_ms, at_ms + int(1000 * expected_s), low, high)
            if lease_id not in self._said and len(self._said) < SAID_MAX:
                self._said[lease_id] = _Said(at_ms, expected_s, around, self._last_wait_s)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower`."""
        if old is None or not old.waiting or (new is not None and new.waiting and not new.ended):
            return
        self._now.pop(old.lease_id, None)
        said = self._said.pop(old.lease_id, None)
        if new is None or new.ended or not new.holding:
            return
        now_ms = self._clock.now_ms()
        waited_s = (now_ms - (new.requeued_ms or new.created_ms)) / 1000
        if said is not None:
            took_s = (now_ms - said.at_ms) / 1000
            self.begun += 1
            self.error_s += abs(said.expected_s - took_s)
            self.naive_error_s += abs(said.last_wait_s - waited_s)
            self._intervals.outcome(said.expected_s, took_s)
            if said.around is not None:
                self.bounded += 1
                self.within += said.around[0] <= took_s <= said.around[1]
            self._last_wait_s = waited_s

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        for name, words, value in (
            ("aliquot_start_forecasts", "Waits whose end was forecast, and that are over", self.begun),
            ("aliquot_start_forecasts_bounded", "Those of them for which bounds were given", self.bounded),
            ("aliquot_start_forecasts_within", "Those of them that ended within their bounds", self.within),
            ("aliquot_start_forecast_error_seconds", "By how much forecasts of waits were wrong", self.error_s),
            (
                "aliquot_start_naive_error_seconds",
                "By how much 'as long as the last one waited' would have been wrong",
                self.naive_error_s,
            ),
        ):
            yield counter(name, words, value=value)

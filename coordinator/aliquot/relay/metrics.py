"""A relay's metrics for Prometheus, summed over all its streams to coordinators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aliquot.coordinator.agents.relayed.mux import Mux
from aliquot.coordinator.reading.gauge import Gauge, measured

_COUNTED = ("batches", "envelopes", "bytes")


class RelayMetrics(Collector):
    """Counted on the event loop, read by the scraper."""

    def __init__(self, gauges: Iterable[Gauge] = ()) -> None:
        self.shed: Counter[str] = Counter()
        """Agents that were refused, by reason."""
        self.sessions = 0
        """Agents that were let in."""
        self.reconnects = 0
        """Streams to a coordinator that came up."""
        self._gauges = tuple(gauges)
        self._mux: Mux | None = None
        self._before: Counter[tuple[str, str]] = Counter()
        self._overruns_before = 0

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it does not collect."""
        return []

    def upstream_began(self, mux: Mux) -> None:
        """There is a stream to a coordinator."""
        self.reconnects += 1
        self._mux = mux

    def upstream_ended(self, mux: Mux) -> None:
        """Keep what it has counted."""
        if self._mux is mux:
            self._mux = None
            self._before = self._counts(mux)
            self._overruns_before += mux.overruns

    def _counts(self, mux: Mux | None) -> Counter[tuple[str, str]]:
        total = Counter(self._before)
        for kind in _COUNTED if mux is not None else ():
            for direction, attribute in (("to_coordinator", f"{kind}_sent"), ("to_agents", f"{kind}_received")):
                total[kind, direction] += getattr(mux, attribute)
        return total

    def collect(self) -> Iterator[Metric]:
        """Everything."""
        mux = self._mux
        counts = self._counts(mux)
        for kind, documentation in (
            ("batches", "Messages on the stream to the coordinator"),
            ("envelopes", "Agents' messages, and what goes with them, within"),
            ("bytes", "Bytes of those messages"),
        ):
            family = CounterMetricFamily(f"aliquot_relay_{kind}", documentation, labels=["direction"])
            for direction in ("to_coordinator", "to_agents"):
                family.add_metric([direction], counts[kind, direction])
            yield family
        shed = CounterMetricFamily("aliquot_relay_shed", "Agents that were sent away at once", labels=["reason"])
        for reason, count in list(self.shed.items()):
            shed.add_metric([reason], count)
        yield shed
        overruns = self._overruns_before + (mux.overruns if mux is not None else 0)
        yield CounterMetricFamily(
            "aliquot_relay_resets", "Agents' streams ended for reading too slowly", value=overruns
        )
        yield CounterMetricFamily("aliquot_relay_sessions", "Agents that were let in", value=self.sessions)
        yield CounterMetricFamily(
            "aliquot_relay_reconnects", "Streams to a coordinator that came up", value=self.reconnects
        )
        yield GaugeMetricFamily(
            "aliquot_relay_upstream", "1 while a coordinator is reached", value=int(mux is not None)
        )
        buffered = mux.buffered if mux is not None else 0
        yield GaugeMetricFamily("aliquot_relay_buffered_bytes", "What waits for agents to read it", value=buffered)
        yield from measured(self._gauges)

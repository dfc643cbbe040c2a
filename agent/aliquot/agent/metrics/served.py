"""Series of what processes that serve leases count, as they said when they were last asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot.agent.core.figures import FIGURES
from aliquot.agent.core.model import Holder

_LABELS = ("node", "lease_id", "member")
_TOTAL = "_total"


class ServedCollector(Collector):
    """Asks nobody: `figures` are those of the last health check. `name` is the node's."""

    def __init__(self, name: Callable[[], str], figures: Callable[[], Mapping[Holder, Mapping[str, int]]]) -> None:
        self._name = name
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client`. Runs in the server's thread: everything is copied before it is walked through."""
        members = list(self._figures().items())
        for key, text in FIGURES.items():
            kind = CounterMetricFamily if key.endswith(_TOTAL) else GaugeMetricFamily
            family = kind(f"aliquot_served_{key.removesuffix(_TOTAL)}", text, labels=_LABELS)
            for holder, figures in members:
                if key in figures:
                    family.add_metric([self._name(), holder.lease_id, str(holder.member)], figures[key])
            yield family

    def describe(self) -> Iterable[Metric]:
        """No metric is described in advance."""
        return []

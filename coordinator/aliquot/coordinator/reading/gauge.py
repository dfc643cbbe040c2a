"""Single numbers for Prometheus that are read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

LABELS_MAX = 200
"""Values of one label that are shown; what is left over is summed up as `OTHER`."""
OTHER = "other"

Gauge = tuple[str, str, Callable[[], float]]
"""(name, documentation, how to read it, on any thread)."""


def measured(gauges: Iterable[Gauge]) -> Iterator[Metric]:
    """As they are now."""
    for name, documentation, read in gauges:
        yield GaugeMetricFamily(name, documentation, value=read())

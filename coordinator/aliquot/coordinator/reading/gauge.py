"""Single numbers for Prometheus that are read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import Exemplar, GaugeMetricFamily, HistogramMetricFamily
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


def histogram(
    name: str,
    documentation: str,
    bounds: Iterable[float],
    counts: Sequence[int],
    total: float,
    examples: Sequence[Exemplar | None] = (),
) -> Metric:
    """Of counts for each bucket, and of what is beyond the last bound; `total` is what was counted, added up."""
    words = (*(str(float(bound)) for bound in bounds), "+Inf")
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for bound, count, example in zip(words, accumulate(counts), examples or [None] * len(words), strict=True):
        buckets.append((bound, count) if example is None else (bound, count, example))
    family = HistogramMetricFamily(name, documentation)
    family.add_metric([], buckets, total)
    return family

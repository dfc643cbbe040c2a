"""Numbers for Prometheus in the form that it reads, and where they are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from aliquot.common.duties import Duties
from aliquot.common.errors import ConfigError
from aliquot.common.scraping import Allowed, Answer, Page, ScrapeServer
from aliquot.common.tls import OwnTls, ServerTls
from aliquot.common.validity import Certificates, Lifetime

LABELS_MAX = 200
"""Values of one label that are shown; what is left over is summed up as `OTHER`."""
OTHER = "other"

Gauge = tuple[str, str, Callable[[], float]]
"""(name, documentation, how to read it, on any thread)."""


def measured(gauges: Iterable[Gauge]) -> Iterator[Metric]:
    """As they are now."""
    for name, documentation, read in gauges:
        yield GaugeMetricFamily(name, documentation, value=read())


Labelled = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number of each."""


def gauges_by(
    labels: Sequence[str],
    name: str,
    documentation: str,
    values: Labelled,
    rest: Callable[[Iterable[float]], float] = sum,
) -> Metric:
    """Gauges of the first `LABELS_MAX`, and by `rest` of all others together."""
    return _bounded(GaugeMetricFamily(name, documentation, labels=labels), labels, values, rest)


def counters_by(labels: Sequence[str], name: str, documentation: str, values: Labelled) -> Metric:
    """Counters of the first `LABELS_MAX`, and of all others together."""
    return _bounded(CounterMetricFamily(name, documentation, labels=labels), labels, values, sum)


def _bounded(
    family: GaugeMetricFamily | CounterMetricFamily,
    labels: Sequence[str],
    values: Labelled,
    rest: Callable[[Iterable[float]], float],
) -> Metric:
    items = list(values)  # made in one go: what it is made of may change meanwhile
    for key, value in items[:LABELS_MAX]:
        family.add_metric(key, value)
    if len(items) > LABELS_MAX:
        family.add_metric([OTHER] * len(labels), rest(value for _, value in items[LABELS_MAX:]))
    return family


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


def program_metrics(duties: Duties, certificates: Certificates, labels: Mapping[str, str] = {}) -> Iterator[Metric]:
    """What every program says of itself, with these labels before its own. On the scraper's thread."""
    names, values = list(labels), list(labels.values())
    done = [([*values, duty], int(not why)) for duty, why in duties.all().items()]
    yield gauges_by([*names, "duty"], "aliquot_duty", "1 while it is done, 0 while it fails", done)
    lives = [([*values, each], life) for each, life in certificates.lifetimes().items()]
    for name, text, read in (
        ("ends", "Since 1970: when a certificate ends", Lifetime.ends_s),
        ("due", "Since 1970: by when it should have been renewed", Lifetime.due_s),
    ):
        found = [(each, read(life)) for each, life in lives]
        yield gauges_by([*names, "of"], f"aliquot_certificate_{name}_seconds", text, found)


def scraped(
    host: str,
    port: int,
    registry: CollectorRegistry,
    *,
    allowed: Allowed | None,
    tls: ServerTls | OwnTls | None,
    probes: Mapping[str, Callable[[], Answer]] = {},
) -> ScrapeServer:
    """A server of all that is registered. Raises ConfigError where it can't listen, and SecurityError."""

    def render(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(registry), content_type)

    try:
        return ScrapeServer(host, port, render, probes=probes, allowed=allowed, tls=tls)
    except OSError as error:
        raise ConfigError(
            f"metrics can't be served on {host}:{port}: {error.strerror}",
            hint="choose another --metrics-port, or -1 for none",
        ) from error

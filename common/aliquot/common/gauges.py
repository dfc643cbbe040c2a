"""Numbers for Prometheus in the form that it reads, and where they are served.

Its library takes 4 MB, most of it for web servers that nobody starts here. So it is loaded by the first scrape, on the
scraper's thread, and nothing else may import it where a program serves metrics that may never be asked for.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from aliquot.common.clock import wall_ms
from aliquot.common.duties import Duties
from aliquot.common.errors import ConfigError
from aliquot.common.scraping import Allowed, Answer, Page, ScrapeServer, allowed_by
from aliquot.common.tls import OwnTls, ServerTls
from aliquot.common.validity import Certificates, Lifetime

if TYPE_CHECKING:
    from prometheus_client import core
    from prometheus_client.registry import Collector

Metric: TypeAlias = "core.Metric"
LABELS_MAX = 200
"""Values of one label that are shown; what is left over is summed up as `OTHER`."""
OTHER = "other"

Gauge = tuple[str, str, Callable[[], float]]
"""(name, documentation, how to read it, on any thread)."""


Example = tuple[dict[str, str], float, float]
"""(labels, value, seconds since 1970): whose a value was."""


def gauge(
    name: str, documentation: str, value: float | None = None, labels: Sequence[str] | None = None
) -> core.GaugeMetricFamily:
    """What goes up and down."""
    return cast("core.GaugeMetricFamily", _library("core").GaugeMetricFamily(name, documentation, value, labels))


def counter(
    name: str, documentation: str, value: float | None = None, labels: Sequence[str] | None = None
) -> core.CounterMetricFamily:
    """What only goes up."""
    return cast("core.CounterMetricFamily", _library("core").CounterMetricFamily(name, documentation, value, labels))


def process_metrics() -> Iterable[Metric]:
    """What the system says of this process."""
    return cast("Iterable[Metric]", _library("process_collector").ProcessCollector(registry=None).collect())


def _library(module: str) -> Any:  # noqa: ANN401 - a module
    return importlib.import_module(f"prometheus_client.{module}")


def measured(gauges: Iterable[Gauge]) -> Iterator[Metric]:
    """As they are now."""
    for name, documentation, read in gauges:
        yield gauge(name, documentation, read())


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
    return _bounded(gauge(name, documentation, labels=labels), labels, values, rest)


def counters_by(labels: Sequence[str], name: str, documentation: str, values: Labelled) -> Metric:
    """Counters of the first `LABELS_MAX`, and of all others together."""
    return _bounded(counter(name, documentation, labels=labels), labels, values, sum)


def _bounded(
    family: core.GaugeMetricFamily | core.CounterMetricFamily,
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
    examples: Sequence[Example | None] = (),
) -> Metric:
    """Of counts for each bucket, and of what is beyond the last bound; `total` is what was counted, added up."""
    words = (*(str(float(bound)) for bound in bounds), "+Inf")
    library = _library("core")
    buckets: list[tuple[object, ...]] = []
    for bound, count, example in zip(words, accumulate(counts), examples or [None] * len(words), strict=True):
        buckets.append((bound, count) if example is None else (bound, count, library.Exemplar(*example)))
    return cast("Metric", library.HistogramMetricFamily(name, documentation, buckets, total))


class Histogram:
    """Counts per bucket, as plain integers: observing costs a bisection, which a client library's lock and label
    look-up would multiply on the hot path. Observed on one thread, read by the scraper.
    """

    __slots__ = ("_bounds", "_counts", "_documentation", "_examples", "_name", "_sum")

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self._name, self._documentation = name, documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._examples: list[tuple[Callable[[], dict[str, str]], float, float] | None] = [None] * (len(bounds) + 1)
        """Of each bucket, the latest value that says whose it was."""

    def observe(self, value: float, whose: Callable[[], dict[str, str]] | None = None, at_ms: int = 0) -> None:
        """Count one value, in the unit of the name. With `whose`, which makes labels when it is scraped, it is its
        bucket's exemplar.
        """
        bucket = bisect_left(self._bounds, value)
        if whose is not None:
            self._examples[bucket] = whose, value, at_ms / 1000
        self._counts[bucket] += 1
        self._sum += value

    def collect(self) -> Metric:
        """In the form that Prometheus reads."""
        latest = list(self._examples)
        examples = [None if each is None else (each[0](), *each[1:]) for each in latest]
        return histogram(self._name, self._documentation, self._bounds, list(self._counts), self._sum, examples)


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


class Own:
    """All of a program that measures nothing else."""

    def __init__(self, tls: ServerTls | None) -> None:
        """`tls` is what it shows to callers. Raises SecurityError."""
        self.duties = Duties()
        self._certificates = Certificates(wall_ms, tls)
        self.duties.watch("certificate", self._certificates.look)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`. On the scraper's thread."""
        self.duties.look()
        yield from program_metrics(self.duties, self._certificates)
        yield from process_metrics()


def scraped(
    host: str,
    port: int,
    registry: Collector,
    token_file: Path | None,
    *,
    tls: ServerTls | OwnTls | None,
    others: Allowed | None = None,
    probes: Mapping[str, Callable[[], Answer]] = {},
) -> ScrapeServer:
    """A server of all that is registered, for whom `allowed_by` lets in. Raises ConfigError where it can't listen or
    anybody could ask, and SecurityError.
    """
    allowed = allowed_by(host, token_file, others)

    def render(accept: str) -> Page:
        encode, content_type = _library("exposition").choose_encoder(accept)
        return Page(encode(registry), content_type)

    try:
        return ScrapeServer(host, port, render, probes=probes, allowed=allowed, tls=tls)
    except OSError as error:
        raise ConfigError(
            f"metrics can't be served on {host}:{port}: {error.strerror}",
            hint="choose another --metrics-port, or -1 for none",
        ) from error

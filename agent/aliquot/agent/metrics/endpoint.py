"""Where the node's metrics are served. What makes the series, and its library, is loaded by the first scrape, on the
scraper's thread: many nodes are never asked, and it takes 3 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.common.gauges import Histogram, Metric, scraped
from aliquot.common.tls import ServerTls

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_POLL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """How long polls took, what `collectors` gives beside, and the HTTP server of both."""

    def __init__(self) -> None:
        polls = Histogram("aliquot_agent_poll_seconds", "How long a device took to answer a poll.", _POLL_BUCKETS_S)
        self._polls, self.observe_poll = polls, polls.observe
        self.collectors: Callable[[], Iterable[Collector]] = tuple
        """Asked by each scrape, on its thread."""
        self._stop: Callable[[], None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`. On the scraper's thread."""
        yield self._polls.collect()
        for each in self.collectors():
            yield from each.collect()

    def serve(self, host: str, port: int, token_file: Path | None = None, tls: ServerTls | None = None) -> int:
        """Listen; port 0 takes a free one. Returns the port. Raises `ConfigError` and `SecurityError`."""
        server = scraped(host, port, self, token_file, tls=tls)
        self._stop = server.close
        return server.port

    def close(self) -> None:
        """Stop listening."""
        self._stop()
        self._stop = lambda: None

"""`/metrics`, `/healthz` and `/readyz` of coordinators.

They answer while the event loop is busy, and say so when the loop is stuck: liveness is that the loop still turns,
readiness that requests are served and granted.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from aliquot.common.errors import ConfigError
from aliquot.common.scraping import Allowed, Answer, Page, ScrapeServer
from aliquot.common.tls import OwnTls, ServerTls

__all__ = ["Answer", "ScrapeServer", "scraped"]


def scraped(
    host: str,
    port: int,
    collector: Collector,
    *,
    live: Callable[[], Answer],
    ready: Callable[[], Answer],
    allowed: Allowed | None,
    tls: ServerTls | OwnTls | None,
) -> ScrapeServer:
    """A server at this address. Raises ConfigError where it can't listen, and SecurityError."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)

    def render(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(encode(registry), content_type)

    try:
        return ScrapeServer(
            host,
            port,
            render,
            probes={"/healthz": live, "/readyz": ready},
            allowed=allowed,
            tls=tls,
        )
    except OSError as error:
        raise ConfigError(
            f"metrics can't be served on {host}:{port}: {error.strerror}",
            hint="choose another --metrics-port, or -1 for none",
        ) from error

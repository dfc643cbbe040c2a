"""The HTTP side: `/metrics`, `/healthz`, `/readyz`, on a thread and a port of its own.

It answers while the event loop is busy, and says so when the loop is stuck: liveness is that the loop still turns,
readiness that requests are served and granted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from aliquot.common.errors import ConfigError


class Answer(NamedTuple):
    """One HTTP answer in plain text."""

    status: int
    text: str


class ScrapeServer:
    """Serves until `close`. Port 0 takes a free one; see `port`."""

    def __init__(
        self, host: str, port: int, collector: Collector, *, live: Callable[[], Answer], ready: Callable[[], Answer]
    ) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        ProcessCollector(registry=registry)
        probes = {"/healthz": live, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds a scraper may take over its request

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._send(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif path in probes:
                    answer = probes[path]()
                    self._send(answer.status, "text/plain; charset=utf-8", answer.text.encode() + b"\n")
                else:
                    self._send(404, "text/plain; charset=utf-8", b"try /metrics, /healthz or /readyz\n")

            def _send(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log no scrapes."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="scrape", daemon=True)
        self._thread.start()

    @classmethod
    def listening(
        cls, host: str, port: int, collector: Collector, *, live: Callable[[], Answer], ready: Callable[[], Answer]
    ) -> Self:
        """A server at this address. Raises ConfigError where it can't listen."""
        try:
            return cls(host, port, collector, live=live, ready=ready)
        except OSError as error:
            raise ConfigError(
                f"metrics can't be served on {host}:{port}: {error.strerror}",
                hint="choose another --metrics-port, or -1 for none",
            ) from error

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

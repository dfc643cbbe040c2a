"""A collector of traces: it takes what OTLP's HTTP exporters send, and keeps the spans."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Spans as they came, each as OTLP's message. `url` is where they are sent to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []

    def trace(self, trace_id: str) -> dict[str, Any]:
        """The spans of a trace, by name and (where there are several) grant."""
        found = [span for span in self.spans if span.trace_id.hex() == trace_id]
        return {f"{span.name} {epoch}" if (epoch := _epoch(span)) else span.name: span for span in found}


def _epoch(span: Any) -> int:
    return next((each.value.int_value for each in span.attributes if each.key == "aliquot.lease_epoch"), 0)


def text_of(span: Any, key: str) -> str:
    """A text among a span's attributes."""
    return next(str(each.value.string_value) for each in span.attributes if each.key == key)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """One on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            made.spans += [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

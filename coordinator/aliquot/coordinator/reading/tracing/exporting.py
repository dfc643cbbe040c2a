"""Sends leases' spans to an OTLP collector, behind the outbox: nobody waits for it, and a collector that is away costs
spans and nothing else. Needs the extra `tracing`; this module is imported only where it is switched on.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.tracing.spans import Span, spans

_QUEUED_MAX = 8_192
_NS_PER_MS = 1_000_000
_TIMEOUT_S = 2.0
"""For a batch, its retries included; then it is lost."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Tracing(Follower):
    """Follows what is durable. Spans wait in a queue of bounded length, and are sent by a thread of the library's."""

    def __init__(self, endpoint: str, version: str, exporter: SpanExporter | None = None) -> None:
        """`endpoint`: an URL such as `http://collector:4318/v1/traces`. `exporter` stands in for it."""
        self._processor = BatchSpanProcessor(
            exporter or OTLPSpanExporter(endpoint, timeout=_TIMEOUT_S), max_queue_size=_QUEUED_MAX
        )
        self._resource = Resource({"service.name": "aliquot-coordinator", "service.version": version})
        self._scope = InstrumentationScope("aliquot.coordinator", version)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower`."""
        for span in spans(old, new):
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        parent = _context(span.trace_id, span.parent_id) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context=_context(span.trace_id, span.span_id),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, span.problem) if span.problem else Status(StatusCode.UNSET),
            start_time=span.start_ms * _NS_PER_MS,
            end_time=span.end_ms * _NS_PER_MS,
        )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)

"""A lease's story as a message."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.tracing.names import place_of
from aliquot.coordinator.reading.tracing.story import Story
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees, shown_text
from aliquot.v1 import leases_pb2


def timeline_message(lease: Lease, story: Story, view: View, sees: Sees | None) -> leases_pb2.Timeline:
    """Of this lease. `sees`: which other leases may be named in it; None: all."""
    message = leases_pb2.Timeline(
        lease_id=lease.lease_id,
        complete=story.complete,
        trace_id=place_of(lease.lease_id, lease.request.labels).trace_id,
    )
    for step in story.steps:
        message.steps.add(at_ms=step.at_ms, what=step.what, detail=shown_text(step.detail, view, sees), seq=step.seq)
    return message

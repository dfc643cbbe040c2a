"""The answers to GetUse and GetTimeline, as messages."""

from __future__ import annotations

from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.deciding.answers.use import UseReport, UseRow
from aliquot.coordinator.reading.tracing.names import place_of
from aliquot.coordinator.reading.tracing.story import Step, Story
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees, shown_text
from aliquot.coordinator.wire.leases import add_measured, write_lease
from aliquot.v1 import leases_pb2

_ROW = Writer(
    leases_pb2.UseRow,
    UseRow,
    {"policy": "policy.action", "policy_after_ms": "policy.after_ms"},
    left_out={"lease": "what of it may be seen is looked up"},
)
_STEP = Writer(leases_pb2.TimelineStep, Step, {"detail": lambda step, seen_by: shown_text(step.detail, *seen_by)})


def report_message(report: UseReport, view: View, sees: Sees | None, observed: ObservedUse) -> leases_pb2.UseReport:
    """The answer to GetUse. `sees`: which other leases may be named in it; None: all."""
    message = leases_pb2.UseReport(left_out=report.left_out, currency=report.currency)
    for row in report.rows:
        slot = message.rows.add()
        write_lease(slot.lease, row.lease, view, sees)
        add_measured(slot.lease.use, row.lease, row.efficiency, observed)
        _ROW.write(slot, row)
    return message


def timeline_message(lease: Lease, story: Story, view: View, sees: Sees | None) -> leases_pb2.Timeline:
    """Of this lease. `sees`: which other leases may be named in it; None: all."""
    message = leases_pb2.Timeline(
        lease_id=lease.lease_id,
        complete=story.complete,
        trace_id=place_of(lease.lease_id, lease.request.labels).trace_id,
    )
    for step in story.steps:
        _STEP.write(message.steps.add(), step, (view, sees))
    return message

"""The answers to GetUse and GetTimeline, as messages."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.deciding.answers.use import UseReport
from aliquot.coordinator.reading.tracing.names import place_of
from aliquot.coordinator.reading.tracing.story import Story
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees, shown_text
from aliquot.coordinator.wire.leases import add_efficiency, write_lease
from aliquot.v1 import leases_pb2


def report_message(report: UseReport, view: View, sees: Sees | None) -> leases_pb2.UseReport:
    """The answer to GetUse. `sees`: which other leases may be named in it; None: all."""
    message = leases_pb2.UseReport(left_out=report.left_out, currency=report.currency)
    for row in report.rows:
        slot = message.rows.add()
        write_lease(slot.lease, row.lease, view, sees)
        add_efficiency(slot.lease.use, row.efficiency)
        slot.idle_ms = row.idle_ms
        slot.wasted_milli_ms = row.wasted_milli_ms
        slot.wasted_micro = row.wasted_micro
        slot.borrowed_milli = row.borrowed_milli
        slot.policy = row.policy.action.value
        slot.policy_after_ms = row.policy.after_ms
    return message


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

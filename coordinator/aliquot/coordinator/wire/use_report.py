"""The answer to GetUse, as a message."""

from __future__ import annotations

from aliquot.coordinator.core.deciding.answers.use import UseReport
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees
from aliquot.coordinator.wire.leases import write_lease
from aliquot.coordinator.wire.use import add_efficiency
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

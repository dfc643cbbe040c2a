"""What agents say of slices, on a running session."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.coordinator.core.commands import ReportSlices, ReportStatus, SliceReport
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.leases import lifecycle
from aliquot.coordinator.core.leases.facts import SliceActive
from aliquot.coordinator.core.leases.records import Lease, SliceState, lease_id_of
from aliquot.coordinator.core.outcomes import NOTHING, Decision
from aliquot.coordinator.core.planning import Planning


def report_slices(state: Planning, command: ReportSlices, now_ms: int) -> Decision[None]:
    """Confirmations. Those of an older session, or of a slice or epoch that is no more, are not believed."""
    node = state.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    return Decision(tuple(conclude_reports(state, command.node_id, command.reports, now_ms)))


def conclude_reports(state: Planning, node_id: str, reports: Iterable[SliceReport], now_ms: int) -> list[Fact]:
    """Facts that follow from reports of one node. An UNREACHABLE slice counts in the state that it will resume."""
    by_lease: dict[str, dict[str, SliceReport]] = {}
    for report in reports:
        if report.slice_id in state.slice_ids_by_node[node_id]:
            by_lease.setdefault(lease_id_of(report.slice_id), {})[report.slice_id] = report
    facts: list[Fact] = []
    for lease_id, of_lease in by_lease.items():
        facts += _conclude_lease(state, state.leases[lease_id], of_lease, now_ms)
    return facts


def _conclude_lease(state: Planning, lease: Lease, reports: dict[str, SliceReport], now_ms: int) -> list[Fact]:
    facts: list[Fact] = []
    gone: list[str] = []
    failed: dict[str, tuple[str, str]] = {}
    for piece in lease.holding:
        report = reports.get(piece.slice_id)
        if report is None or report.lease_epoch != piece.lease_epoch:
            continue
        if report.status is ReportStatus.ACTIVE:
            state_now = piece.resume or piece.state
            fresh = state_now is SliceState.GRANTED
            changed = report.tier not in (0, piece.tier) or report.endpoint not in ("", piece.endpoint)
            if fresh or (state_now is SliceState.ACTIVE and changed):
                facts.append(
                    SliceActive(
                        at_ms=now_ms,
                        lease_id=lease.lease_id,
                        slice_id=piece.slice_id,
                        tier=report.tier,
                        endpoint=report.endpoint,
                    )
                )
        elif report.status is ReportStatus.GONE and piece.ending:
            gone.append(piece.slice_id)
        elif report.status in (ReportStatus.GONE, ReportStatus.FAILED):
            failed[piece.slice_id] = (report.reason or "LOST", report.detail)
    return facts + lifecycle.conclude(state, lease, gone, failed, now_ms)

"""What agents say of slices, on a running session."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.coordinator.core.books.leases.facts import SliceActive, SlicesAdopted
from aliquot.coordinator.core.books.leases.records import Lease, SliceState, lease_id_of
from aliquot.coordinator.core.books.nodes import NodeStateChanged
from aliquot.coordinator.core.commands import ReconcileNode, ReportSlices, ReportStatus, SliceReport
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.types import NodeState


def report_slices(known: Known, command: ReportSlices, now_ms: int) -> Decision[None]:
    """Confirmations. Those of an older session, or of a slice or epoch that is no more, are not believed."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    return Decision(tuple(conclude_reports(known, command.node_id, command.reports, now_ms)))


def conclude_reports(known: Known, node_id: str, reports: Iterable[SliceReport], now_ms: int) -> list[Fact]:
    """Facts that follow from reports of one node. An UNREACHABLE slice counts in the state that it will resume."""
    by_lease: dict[str, dict[str, SliceReport]] = {}
    for report in reports:
        if report.slice_id in known.slice_ids_by_node[node_id]:
            by_lease.setdefault(lease_id_of(report.slice_id), {})[report.slice_id] = report
    facts: list[Fact] = []
    for lease_id, of_lease in by_lease.items():
        facts += _conclude_lease(known, known.leases[lease_id], of_lease, now_ms)
    return facts


def _conclude_lease(known: Known, lease: Lease, reports: dict[str, SliceReport], now_ms: int) -> list[Fact]:
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
                facts.append(SliceActive(now_ms, lease.lease_id, piece.slice_id, report.tier, report.endpoint))
        elif report.status is ReportStatus.GONE and piece.ending:
            gone.append(piece.slice_id)
        elif report.status in (ReportStatus.GONE, ReportStatus.FAILED):
            failed[piece.slice_id] = (report.reason or "LOST", report.detail)
    drawn_mj = {slice_id: report.energy_mj for slice_id, report in reports.items()}
    return facts + lifecycle.conclude(known, lease, gone, failed, now_ms, drawn_mj)


# --------------------
# A node's agent is back: compare what it holds with the books, then let the node be used again.


def reconcile(known: Known, command: ReconcileNode, now_ms: int) -> Decision[None]:
    """Adopt what is held and known; count as gone what was ending and is no longer held; then READY.

    A slice that should run and that the agent does not hold stays as it is: the desired state makes the agent set it up
    again. Slices that only the agent knows stay quarantined there: it reports their memory as foreign, and the outbox
    tells it which of them have ended.
    """
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch or node.state is not NodeState.RECONCILING:
        return NOTHING
    reports = {report.slice_id: report for report in command.reports}
    adopted: list[str] = []
    for slice_id in known.slice_ids_by_node[command.node_id]:
        piece = known.leases[lease_id_of(slice_id)].find(slice_id)
        assert piece is not None
        if piece.state is SliceState.UNREACHABLE:
            adopted.append(slice_id)
        if slice_id not in reports and piece.ending:
            reports[slice_id] = SliceReport(slice_id, piece.lease_epoch, ReportStatus.GONE)
    facts: list[Fact] = []
    if adopted:
        facts.append(SlicesAdopted(at_ms=now_ms, node_id=command.node_id, slice_ids=tuple(adopted)))
    facts += conclude_reports(known, command.node_id, reports.values(), now_ms)
    facts.append(
        NodeStateChanged(
            at_ms=now_ms,
            node_id=command.node_id,
            state=NodeState.READY,
            session_epoch=command.session_epoch,
        )
    )
    return Decision(tuple(facts))


DECIDES = Decides(commands=by_kind(reconcile, report_slices))

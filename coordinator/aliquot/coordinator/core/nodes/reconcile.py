"""A node's agent is back: compare what it holds with the books, then let the node be used again."""

from __future__ import annotations

from aliquot.coordinator.core.commands import ReconcileNode, ReportStatus, SliceReport
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.leases.facts import SlicesAdopted
from aliquot.coordinator.core.leases.records import SliceState, lease_id_of
from aliquot.coordinator.core.leases.reports import conclude_reports
from aliquot.coordinator.core.nodes.facts import NodeStateChanged
from aliquot.coordinator.core.outcomes import NOTHING, Decision
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.types import NodeState


def reconcile(state: Planning, command: ReconcileNode, now_ms: int) -> Decision[None]:
    """Adopt what is held and known; count as gone what was ending and is no longer held; then READY.

    A slice that should run and that the agent does not hold stays as it is: the desired state makes the agent set it up
    again. Slices that only the agent knows stay quarantined there: it reports their memory as foreign, and the outbox
    tells it which of them have ended.
    """
    node = state.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch or node.state is not NodeState.RECONCILING:
        return NOTHING
    reports = {report.slice_id: report for report in command.reports}
    adopted: list[str] = []
    for slice_id in state.slice_ids_by_node[command.node_id]:
        piece = state.leases[lease_id_of(slice_id)].find(slice_id)
        assert piece is not None
        if piece.state is SliceState.UNREACHABLE:
            adopted.append(slice_id)
        if slice_id not in reports and piece.ending:
            reports[slice_id] = SliceReport(slice_id, piece.lease_epoch, ReportStatus.GONE)
    facts: list[Fact] = []
    if adopted:
        facts.append(SlicesAdopted(at_ms=now_ms, node_id=command.node_id, slice_ids=tuple(adopted)))
    facts += conclude_reports(state, command.node_id, reports.values(), now_ms)
    facts.append(
        NodeStateChanged(
            at_ms=now_ms,
            node_id=command.node_id,
            state=NodeState.READY,
            session_epoch=command.session_epoch,
        )
    )
    return Decision(tuple(facts))

"""What is wrong in the pool now, what was of late, and what open incidents wait for. O(open and kept incidents)."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.common.signs import Remedy
from aliquot.coordinator.core.books.health.cover import devices_on, leases_on
from aliquot.coordinator.core.books.health.records import WORDS, CauseTotals, Incident, Standing
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.health import may_repair
from aliquot.coordinator.core.values.errors import IncidentUnknown
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.types import NodeState


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An incident as it is shown."""

    incident: Incident
    node_name: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer to `GetHealth`."""

    open: tuple[IncidentView, ...]
    closed: tuple[IncidentView, ...]
    """The latest first."""
    totals: tuple[tuple[str, CauseTotals], ...]
    mttr_ms: int | None
    mttr_p95_ms: int | None
    mtbf_ms: int | None
    with_story: bool = False


@dataclass(frozen=True, slots=True)
class GetHealth(Query[HealthReport]):
    """How are the cards? Or, of one incident, how has it gone?"""

    incident: int = 0
    """0: all of them."""


def health(known: Known, query: GetHealth, now_ms: int) -> HealthReport:
    """Raises IncidentUnknown."""
    books = known.health
    is_open = [incident for _, incident in sorted(books.incidents.items())]
    closed = list(reversed(books.closed))
    if query.incident:
        is_open = [incident for incident in is_open if incident.number == query.incident]
        closed = [incident for incident in closed if incident.number == query.incident]
        if not (is_open or closed):
            raise IncidentUnknown(
                f"there is no incident {query.incident}, or it was forgotten",
                hint="`aliquot health` lists those that are known",
            )
    took = sorted(each.back_ms - each.opened_ms for each in books.closed if each.back_ms and not each.planned)
    intervals = known.health.intervals
    between = sum(intervals.counts)
    return HealthReport(
        open=tuple(_view(known, incident, now_ms) for incident in is_open),
        closed=tuple(IncidentView(incident, _name(known, incident)) for incident in closed),
        totals=tuple(sorted(books.totals.items())),
        mttr_ms=sum(took) // len(took) if took else None,
        mttr_p95_ms=took[(len(took) * 95 - 1) // 100] if took else None,
        mtbf_ms=intervals.sum_ms // between if between else None,
        with_story=bool(query.incident),
    )


def _name(known: Known, incident: Incident) -> str:
    node = known.nodes.get(incident.node_id)
    return node.spec.name if node is not None else ""


def _view(known: Known, incident: Incident, now_ms: int) -> IncidentView:
    node = known.nodes[incident.node_id]
    return IncidentView(incident, node.spec.name, _waits_for(known, node, incident, now_ms))


def _waits_for(known: Known, node: Node, incident: Incident, now_ms: int) -> str:
    devices = devices_on(node.spec, incident.units)
    match incident.state:
        case Standing.QUARANTINED:
            held = leases_on(
                known.leases, known.slice_ids_by_node[node.spec.node_id], {device.uuid for device in devices}
            )
            return f"the ends of {len(held)} leases"
        case Standing.SERVICE:
            return "a person: `aliquot device verify` or `return`"
        case Standing.REPAIRING | Standing.VERIFYING:
            return "its agent" if node.state is NodeState.READY else f"its agent, which is {node.state.name}"
        case Standing.PROBATION:
            return f"the end of its probation, in {max(0, incident.due_ms - now_ms) // 60_000} min"
    if incident.by:
        return "whoever closed it: `aliquot device return`"
    if incident.well_ms:
        return "that it stays well"
    if incident.remedy in (Remedy.RESET, Remedy.REBOOT):
        word = WORDS[incident.remedy]
        if word not in node.spec.remedies:
            return f"a {word} by hand: its agent is not set to do that"
        return may_repair(known, incident, now_ms) or "its agent"
    return "; ".join(known.devices[d.uuid].reason for d in devices if not known.devices[d.uuid].healthy) or "its return"


DECIDES = Decides(queries=by_kind(health))

"""Explain: the same decision as Allocate, stopped before anything changes."""

from __future__ import annotations

from aliquot.coordinator.core.commands import Explain, ExplainLease
from aliquot.coordinator.core.decide.outcomes import Decision, Explained
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.state import State

AHEAD_SHOWN = 16


def explain_request(state: State, command: Explain, now_ms: int) -> Decision:
    """What would become of this request if it were sent now?"""
    demand = command.request.demand
    if state.engine.possible(demand):
        placement = state.engine.place(demand, arrival=state.next_arrival)
        if placement is not None:
            return Decision((), Explained(True, False, "fits now", placement=placement))
    shortfall = state.engine.explain(demand)
    return Decision(
        (),
        Explained(
            False,
            shortfall.impossible,
            shortfall.summary,
            missing=shortfall.missing,
            queue_length=len(state.lines),
        ),
    )


def explain_lease(state: State, command: ExplainLease, now_ms: int) -> Decision:
    """Why is this lease where it is?"""
    lease = state.lease(command.lease_id)
    if not lease.waiting or lease.ended:
        return Decision((), Explained(False, False, _story(lease), queue_length=len(state.lines)))
    demand = lease.request.demand
    count, ahead = state.lines.ahead_of(lease, AHEAD_SHOWN)
    placement = state.engine.place(demand.avoiding(lease.avoid_device_uuids), arrival=lease.arrival)
    if placement is None and lease.avoid_device_uuids:
        placement = state.engine.place(demand, arrival=lease.arrival)
    shortfall = None if placement is not None else state.engine.explain(demand)
    summary = "fits now, and is offered its place in turn" if shortfall is None else shortfall.summary
    if lease.not_before_ms > now_ms:
        summary = f"in back-off for {lease.not_before_ms - now_ms} ms more after: {lease.note}; {summary}"
    return Decision(
        (),
        Explained(
            fits_now=shortfall is None,
            impossible=shortfall is not None and shortfall.impossible,
            summary=summary,
            missing=shortfall.missing if shortfall is not None else (),
            placement=placement,
            queue_position=count + 1,
            queue_length=len(state.lines),
            ahead=tuple(ahead),
        ),
    )


def _story(lease: Lease) -> str:
    if lease.ended:
        return f"ended: {lease.end_reason}" + (f" ({lease.end_detail})" if lease.end_detail else "")
    if lease.ending:
        return f"ending: {lease.end_reason}; {len(lease.holding)} slices still hold their capacity"
    return f"{lease.state.name.lower()} on " + ", ".join(sorted({piece.plan.node_id for piece in lease.holding}))

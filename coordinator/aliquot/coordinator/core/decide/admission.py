"""Admit: offer what is free along the waiting lines, a bounded step at a time."""

from __future__ import annotations

from aliquot.coordinator.core.commands import Admit
from aliquot.coordinator.core.decide.allocate import granted
from aliquot.coordinator.core.decide.granting import is_entitled, offer, whole_pool
from aliquot.coordinator.core.decide.outcomes import AdmitOutcome, Decision
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.state import State


def admit(state: State, command: Admit, now_ms: int) -> Decision:
    """Grant at most one request, trying at most `attempts` lines.

    A pass runs to its end before the next begins, so that a pool where something is freed all the time still reaches
    the back of the line.
    """
    if state.admission is None:
        if not state.wants_admission():
            return Decision((), AdmitOutcome(granted=False, more=False))
        state.capacity_freed = False
        state.admission = start_pass(state, now_ms)
    walk = state.admission
    for _ in range(command.attempts):
        head = walk.head()
        if head is None:
            state.admission = None
            return Decision((), AdmitOutcome(granted=False, more=state.wants_admission()))
        lease = state.leases[head.lease_id]
        demand = head.line.demand.avoiding(head.line.avoid)
        found = offer(state, lease.request, demand, lease.arrival, now_ms, preempted_at_ms=lease.preempted_at_ms)
        if found.placement is not None:
            # The walk is not moved on: its line has another first one once this fact is applied.
            fact = granted(lease.lease_id, lease.lease_epoch + 1, found.placement, now_ms)
            return Decision((fact,), AdmitOutcome(granted=True, more=True))
        walk.passed()
    return Decision((), AdmitOutcome(granted=False, more=True))


def start_pass(state: State, now_ms: int) -> AdmissionPass:
    """A walk over all that waits, in the order that holds now."""
    leases = state.leases
    return AdmissionPass(
        state.lines,
        state.tenancy,
        capacity=whole_pool(state),
        now_ms=now_ms,
        covered=lambda lease_id: is_entitled(state, leases[lease_id].request),
        created_ms=lambda lease_id: leases[lease_id].created_ms,
    )

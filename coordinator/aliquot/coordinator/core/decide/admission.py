"""Admit: offer what is free along the waiting lines, a bounded step at a time."""

from __future__ import annotations

from aliquot.coordinator.core.commands import Admit
from aliquot.coordinator.core.decide.allocate import granted
from aliquot.coordinator.core.decide.outcomes import AdmitOutcome, Decision
from aliquot.coordinator.core.state import State


def admit(state: State, command: Admit, now_ms: int) -> Decision:
    """Grant at most one request, trying at most `attempts` lines.

    A pass runs to its end before the next begins, so that a pool where something is freed all the time still reaches
    the
    back of the line.
    """
    if state.admission is None:
        if not state.wants_admission():
            return Decision((), AdmitOutcome(granted=False, more=False))
        state.capacity_freed = False
        state.admission = state.lines.start_pass()
    for _ in range(command.attempts):
        head = state.admission.head()
        if head is None:
            state.admission = None
            return Decision((), AdmitOutcome(granted=False, more=state.wants_admission()))
        lease = state.leases[head.lease_id]
        demand, avoid = head.line
        placement = state.engine.place(demand.avoiding(avoid), arrival=lease.arrival)
        if placement is not None:
            fact = granted(lease.lease_id, lease.lease_epoch + 1, placement, now_ms)
            return Decision((fact,), AdmitOutcome(granted=True, more=True))
        state.admission.block()
    return Decision((), AdmitOutcome(granted=False, more=True))

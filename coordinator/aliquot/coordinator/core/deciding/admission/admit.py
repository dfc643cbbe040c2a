"""Admit: offer what is free along the waiting lines, a bounded step at a time; make room for entitled requests."""

from __future__ import annotations

from bisect import bisect_left

from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands import Admit
from aliquot.coordinator.core.commands.outcomes import AdmitOutcome, Attempt, Decision
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.order import attempt
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import AdmissionPass, Head
from aliquot.coordinator.core.rules.granting import is_entitled, offer, sterner, whole_pool
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.troubles import ORDER, WorkKey, WorkKind

RESTING_MAX = 64
"""Requests of a line on which deciding has failed that are passed over in one attempt."""


def admit(known: Known, command: Admit, now_ms: int) -> Decision[AdmitOutcome]:
    """Grant at most one request, trying at most `attempts` lines.

    A pass runs to its end before the next begins, so that a pool where something is freed all the time still reaches
    the back of the line.
    """
    with known.memory.troubles.blaming(ORDER):
        return _admit(known, command, now_ms)


def _admit(known: Known, command: Admit, now_ms: int) -> Decision[AdmitOutcome]:
    if known.ready_holds:
        used = holding.use_complete(known, now_ms)
        if used is not None:
            return Decision(used.facts, AdmitOutcome(granted=True, more=True))
    if known.memory.admission is None:
        if not known.wants_admission():
            return Decision((), AdmitOutcome(granted=False, more=False))
        broken = holding.break_lost(known, now_ms)
        if broken:
            return Decision(tuple(broken), AdmitOutcome(granted=False, more=True))
        known.memory.admission = start_pass(known, now_ms)
        known.offering()
    attempts, troubles = command.attempts, known.memory.troubles
    while attempts > 0:
        admission = known.memory.admission
        head = admission.head()
        if head is None:
            known.memory.admission = None
            troubles.drop(ORDER)
            return Decision((), AdmitOutcome(granted=False, more=known.wants_admission()))
        if troubles:
            head = _without_trouble(known, admission, head)
            if head is None:
                attempts -= 1
                continue
        work = WorkKey(WorkKind.ADMISSION, head.lease_id)
        with troubles.blaming(work):
            tried = _try(known, admission, head, now_ms)
        if troubles:
            troubles.drop(work)
        if not tried.again:
            admission.passed()
        if tried.facts:
            return Decision(tuple(tried.facts), AdmitOutcome(granted=True, more=True))
        attempts -= tried.cost
    return Decision((), AdmitOutcome(granted=False, more=True))


def _without_trouble(known: Known, admission: AdmissionPass, head: Head) -> Head | None:
    """The first request of the line on which deciding has not failed: those behind a failing one are not held up.

    None: there is none, or none was found yet; the pass has been told which.
    """
    troubles = known.memory.troubles
    place = known.lines.place_of(head.lease_id)
    if place is None or not troubles.rests(head.lease_id):
        return head
    line = known.lines.queues[place.queue][place.tenant].lines[head.line]
    key = (place.queue, place.tenant, head.line)
    begin = bisect_left(line, admission.rests_before.get(key, (head.rank, "")))
    for rank, lease_id in line[begin : begin + RESTING_MAX]:
        if not troubles.rests(lease_id):
            return Head(rank, lease_id, head.line)
    if begin + RESTING_MAX < len(line):
        admission.rests_before[key] = line[begin + RESTING_MAX]
    else:
        admission.passed()
    return None


def _try(known: Known, admission: AdmissionPass, head: Head, now_ms: int) -> Attempt:
    """Grant the head of a line, or make room for it. After a grant the line is tried again: it has another head."""
    lease = known.leases[head.lease_id]
    wanted = sterner(known, lease.request, head.line.demand, now_ms)
    demand = wanted.avoiding(head.line.avoid)
    found = offer(known, lease.request, demand, now_ms, preempted_at_ms=lease.preempted_at_ms)
    if head.line.avoid and found.placement is None and found.over is None:
        # Its back-off is over, and a device that has failed it is better than none.
        demand = wanted
        found = offer(known, lease.request, demand, now_ms, preempted_at_ms=lease.preempted_at_ms)
    return attempt(known, Waiting(admission, head, lease, demand, found, now_ms))


def start_pass(known: Known, now_ms: int) -> AdmissionPass:
    """A pass over all that waits, in the order that holds now."""
    leases, troubles = known.leases, known.memory.troubles

    def covered(lease_id: str) -> bool:
        if troubles and troubles.rests(lease_id):
            return False
        with troubles.blaming(WorkKey(WorkKind.ADMISSION, lease_id)):
            return is_entitled(known, leases[lease_id])

    return AdmissionPass(
        known.lines,
        known.tenancy,
        capacity=whole_pool(known),
        now_ms=now_ms,
        covered=covered,
        created_ms=lambda lease_id: leases[lease_id].created_ms,
    )


def _retry(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    # Its equals waited for the same moment, also where the lease itself has gone.
    known.memory.look_again = True
    if known.memory.troubles:
        known.memory.troubles.wake(lease_id, now_ms)
    return []


def _preempted(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    """The oldest of its preemptions no longer counts: it may start again where it could be preempted."""
    lease = known.leases.get(lease_id)
    if lease is None or len(lease.preempted_at_ms) >= known.config.preemptions_max:
        known.memory.look_again = True
    return []


def _patience(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    """Let the first in line of a tenant be looked at again; of those behind it, nothing follows yet. Under `slowdown`
    anybody: others that are due sooner may have come lately.
    """
    place = known.lines.place_of(lease_id)
    if place is None:
        return []
    by_due = known.tenancy.queue_spec(place.queue).policy is QueuePolicy.SLOWDOWN
    if by_due or known.lines.is_first(lease_id):
        known.memory.look_again = True
    return []


DECIDES = Decides(commands=by_kind(admit), due={Due.RETRY: _retry, Due.PREEMPTED: _preempted, Due.PATIENCE: _patience})

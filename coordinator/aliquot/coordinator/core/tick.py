"""Tick: carry out what is due. One subject a call, so that a turn stays short."""

from __future__ import annotations

from aliquot.coordinator.core.commands import RetrySetAside, Tick
from aliquot.coordinator.core.commands.outcomes import Decision, SetAside, TickOutcome
from aliquot.coordinator.core.deciding.subject import Look
from aliquot.coordinator.core.deciding.subjects import LOOK
from aliquot.coordinator.core.known.known import Known, Work
from aliquot.coordinator.core.values.timers import Due


def tick(known: Known, command: Tick, now_ms: int) -> Decision[TickOutcome]:
    """Look at due entries until one of them asks for something, or `limit` asked for nothing."""
    due = known.due(now_ms, command.limit)
    troubles = known.memory.troubles
    for number, work in enumerate(due, 1):
        with troubles.blaming(work.key, work.place):
            facts = _LOOK[work.kind](known, work.subject, now_ms)
        if facts:
            taken = due[:number]
            # A window that has moved on is looked at again once it has: its nodes are to be emptied. So is an incident.
            more = work.kind in (Due.MAINTENANCE, Due.HEALTH) or _more(known, taken, now_ms)
            return Decision(tuple(facts), TickOutcome(more), tuple(taken))
        if work.kind is Due.RETRY and known.lines.is_resting(work.subject):
            # It stands in line again once this has been carried out, and what is due next should know.
            taken = due[:number]
            return Decision((), TickOutcome(_more(known, taken, now_ms)), tuple(taken))
    return Decision((), TickOutcome(_more(known, due, now_ms)), tuple(due))


def retry_set_aside(known: Known, command: RetrySetAside, now_ms: int) -> Decision[SetAside]:
    """Forget that it failed. Nothing of it is durable, so nothing is journalled."""
    found = [trouble for trouble in known.troubles_about(command.subject) if trouble.set_aside]
    for trouble in found if command.carry_out else ():
        known.memory.troubles.drop(trouble.work)
        known.memory.look_again = True
    return Decision((), SetAside(tuple(found)))


def _more(known: Known, taken: list[Work], now_ms: int) -> bool:
    """Whether something will still be due when these have been taken."""
    return len(known.due(now_ms, len(taken) + 1)) > len(taken)


_LOOK: dict[Due, Look] = dict(LOOK)

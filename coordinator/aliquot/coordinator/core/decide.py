"""`decide(known, command, now_ms)`: what follows from a command, as facts, changing nothing that is journalled.

Every decision is a function of the State and the settings: ids and times come in with the command. A command that can't
be carried out is refused with a DomainError. Deciding writes only the decider's memory, which can be
rebuilt. Its facts are applied at once: see `decider`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import tick
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import DryRun, Query
from aliquot.coordinator.core.deciding import access
from aliquot.coordinator.core.deciding.subject import Answer, Decide
from aliquot.coordinator.core.deciding.subjects import ANSWER, DECIDE, answers_of
from aliquot.coordinator.core.known.known import Known

T = TypeVar("T")


def decide(known: Known, command: c.Command[T], now_ms: int) -> Decision[T]:
    """What to do about `command`. Raises DomainError when it is refused.

    `now_ms` is never below the time of the last fact: the writer's clock sees to it, and it is enforced here once more.
    """
    known.catch_up()
    known.memory.troubles.begin()
    return decide_one(known, command, max(now_ms, known.now_ms))


def decide_one(known: Known, command: c.Command[T], now_ms: int) -> Decision[T]:
    """The same within a decision that has begun."""
    return _DECIDE[type(command)](known, command, now_ms)


def _on_behalf(known: Known, command: c.OnBehalf[Any], now_ms: int) -> Decision[Any]:
    """What follows from a command that somebody gave, and who that was, where anything does."""
    access.require_token(known, command.by, now_ms)
    decision = decide_one(known, command.command, now_ms)
    if not decision.facts:
        return decision
    return Decision((access.acted(command, now_ms), *decision.facts), decision.outcome, decision.taken)


def answer(known: Known, query: Query[T], now_ms: int) -> T:
    """The answer to `query`. Raises DomainError where it asks for what does not exist."""
    known.catch_up()
    find = _ANSWER.get(type(query)) or answers_of(type(query))
    found: T = find(known, query, max(now_ms, known.now_ms))
    return found


def _dry_run(known: Known, query: DryRun[T], now_ms: int) -> T:
    return decide(known, query.command, now_ms).outcome


_ANSWER: dict[type[Any], Answer] = {**ANSWER, DryRun: _dry_run}
_DECIDE: dict[type[Any], Decide] = {
    **DECIDE,
    c.OnBehalf: _on_behalf,
    c.Tick: tick.tick,
    c.RetrySetAside: tick.retry_set_aside,
}

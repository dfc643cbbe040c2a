"""All that decides, by subject; and the parts that are loaded only when something first asks for them.

A part in `LATER` costs a coordinator that does not use it nothing: no module of it is loaded until one of its commands
or queries comes, or something of it is due. Its facts, its books and how the one changes the other are always there
(`evolve`), so that any journal replays. To make a subject such a part: give it a function that imports it, name its
commands and what is due of it, and take it off `SUBJECTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.deciding import (
    access,
    borrowing,
    elastic,
    ending,
    enrolment,
    extending,
    health,
    holds,
    leading,
    ledger,
    maintenance,
    mig,
    nodes,
    reports,
    tenancy,
    use,
)
from aliquot.coordinator.core.deciding.admission import admit, allocate, placing
from aliquot.coordinator.core.deciding.answers import explain
from aliquot.coordinator.core.deciding.answers import health as health_now
from aliquot.coordinator.core.deciding.answers import use as use_now
from aliquot.coordinator.core.deciding.subject import Answer, Decide, Decides, Look
from aliquot.coordinator.core.known.planning import Planning
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due

SUBJECTS = (
    access.DECIDES,
    admit.DECIDES,
    allocate.DECIDES,
    borrowing.DECIDES,
    elastic.DECIDES,
    ending.DECIDES,
    enrolment.DECIDES,
    explain.DECIDES,
    extending.DECIDES,
    health.DECIDES,
    health_now.DECIDES,
    holds.DECIDES,
    leading.DECIDES,
    ledger.DECIDES,
    maintenance.DECIDES,
    mig.DECIDES,
    nodes.DECIDES,
    placing.DECIDES,
    reports.DECIDES,
    tenancy.DECIDES,
    use.DECIDES,
    use_now.DECIDES,
)


@dataclass(frozen=True, slots=True)
class Later:
    """A part that is loaded when it is first asked for."""

    load: Callable[[], tuple[Decides, ...]]
    """Imports it. Called again and again: Python imports once."""
    commands: tuple[type[c.Command[Any]], ...] = ()
    due: tuple[Due, ...] = ()

    def decide(self, known: Planning, command: c.Command[Any], now_ms: int) -> Decision[Any]:
        """What its subject decides."""
        return next(table for part in self.load() if (table := part.commands.get(type(command))))(
            known, command, now_ms
        )

    def look_for(self, due: Due) -> Look:
        """What its subject does about such an entry."""

        def look(known: Planning, subject: str, now_ms: int) -> list[Fact]:
            return next(table for part in self.load() if (table := part.due.get(due)))(known, subject, now_ms)

        return look


def _capacity() -> tuple[Decides, ...]:
    from aliquot.coordinator.core.deciding.capacity import ordering, queries  # noqa: PLC0415 - see above

    return ordering.DECIDES, queries.DECIDES


def _demand() -> tuple[Decides, ...]:
    from aliquot.coordinator.core.deciding import demand  # noqa: PLC0415 - see above

    return (demand.DECIDES,)


LATER = (
    Later(
        _capacity,
        commands=(c.DeclareCapacity, c.TakeOrders, c.ReportOrder, c.WithdrawOrder, c.ExpectDemand),
        due=(Due.CAPACITY,),
    ),
    Later(_demand, commands=(c.NoteDemand,)),
)

# Flat tables: one look-up for each command, query and entry.
DECIDE: dict[type[Any], Decide] = {
    **{kind: part.decide for part in LATER for kind in part.commands},
    **{kind: decide for subject in SUBJECTS for kind, decide in subject.commands.items()},
}
LOOK: dict[Due, Look] = {
    **{due: part.look_for(due) for part in LATER for due in part.due},
    **{due: look for subject in SUBJECTS for due, look in subject.due.items()},
}
ANSWER: dict[type[Any], Answer] = {kind: answer for subject in SUBJECTS for kind, answer in subject.queries.items()}


def answers_of(kind: type[Any]) -> Answer:
    """How a part that is loaded later answers a query. Whoever asks has imported it, so this looks into all of them."""
    found: Iterator[Answer] = (part.queries[kind] for late in LATER for part in late.load() if kind in part.queries)
    return next(found)

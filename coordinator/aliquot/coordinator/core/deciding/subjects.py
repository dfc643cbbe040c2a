"""All that decides, by subject; and the parts that are loaded only when something first asks for them.

A part in `LATER` costs a coordinator that does not use it nothing: no module of it is loaded until one of its commands
or queries comes, or something of it is due. Its facts, its books and how the one changes the other are always there
(`evolve`), so that any journal replays. To make a subject such a part: name its modules, its commands and queries and
what is due of it, and take it off `SUBJECTS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.deciding import (
    access,
    borrowing,
    elastic,
    ending,
    holds,
    leading,
    ledger,
    nodes,
    reports,
    use,
)
from aliquot.coordinator.core.deciding.admission import admit, allocate, placing
from aliquot.coordinator.core.deciding.answers import health as health_now
from aliquot.coordinator.core.deciding.answers import use as use_now
from aliquot.coordinator.core.deciding.subject import Answer, Decide, Decides, Look
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due

SUBJECTS = (
    access.DECIDES,
    admit.DECIDES,
    allocate.DECIDES,
    borrowing.DECIDES,
    elastic.DECIDES,
    ending.DECIDES,
    health_now.DECIDES,
    holds.DECIDES,
    leading.DECIDES,
    ledger.DECIDES,
    nodes.DECIDES,
    placing.DECIDES,
    reports.DECIDES,
    use.DECIDES,
    use_now.DECIDES,
)


@dataclass(frozen=True, slots=True)
class Later:
    """A part that is loaded when it is first asked for."""

    modules: tuple[str, ...]
    """In this room; each has its `DECIDES`."""
    commands: tuple[type[c.Command[Any]], ...] = ()
    queries: tuple[type[Any], ...] = ()
    due: tuple[Due, ...] = ()

    def load(self) -> Iterator[Decides]:
        """Imports them. Called again and again: Python imports once."""
        for name in self.modules:
            yield importlib.import_module(f"aliquot.coordinator.core.deciding.{name}").DECIDES

    def decide(self, known: Known, command: c.Command[Any], now_ms: int) -> Decision[Any]:
        """What its subject decides."""
        return next(table for part in self.load() if (table := part.commands.get(type(command))))(
            known, command, now_ms
        )

    def answer(self, known: Known, query: Any, now_ms: int) -> Any:  # noqa: ANN401 - see `Answer`
        """What its subject answers."""
        return next(table for part in self.load() if (table := part.queries.get(type(query))))(known, query, now_ms)

    def look_for(self, due: Due) -> Look:
        """What its subject does about such an entry."""

        def look(known: Known, subject: str, now_ms: int) -> list[Fact]:
            return next(table for part in self.load() if (table := part.due.get(due)))(known, subject, now_ms)

        return look


LATER = (
    Later(
        ("supply.ordering", "supply.queries"),
        commands=(c.DeclareSupply, c.TakeOrders, c.ReportOrder, c.WithdrawOrder, c.ExpectDemand),
        due=(Due.SUPPLY,),
    ),
    Later(("demand",), commands=(c.NoteDemand,)),
    Later(
        ("enrolment",),
        commands=(c.InviteNode, c.JoinNode, c.DisenrolNode, c.RotateAuthority, c.RetireAuthority, c.NoteTrust),
        due=(Due.INVITE,),
    ),
    Later(("extending",), commands=(c.ExtendLease,)),
    Later(("answers.explain",), queries=(Explain, ExplainLease)),
    Later(
        ("health",),
        commands=(c.ReportCare, c.ReportHit, c.QuarantineDevice, c.VerifyDevice, c.ReturnDevice),
        due=(Due.HEALTH,),
    ),
    Later(("maintenance",), commands=(c.DeclareMaintenance, c.EndMaintenance), due=(Due.MAINTENANCE,)),
    Later(("mig",), commands=(c.ReportCut,), due=(Due.CUT,)),
    Later(("tenancy",), commands=(c.Apply, c.MoveQuotas, c.Withdraw, c.Forgive), due=(Due.OFFENCE, Due.QUOTA)),
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
ANSWER: dict[type[Any], Answer] = {
    **{kind: part.answer for part in LATER for kind in part.queries},
    **{kind: answer for subject in SUBJECTS for kind, answer in subject.queries.items()},
}


def answers_of(kind: type[Any]) -> Answer:
    """How a part that is loaded later answers a query of its own, which whoever asks has imported from its module."""
    answer: Answer = importlib.import_module(kind.__module__).DECIDES.queries[kind]
    return answer

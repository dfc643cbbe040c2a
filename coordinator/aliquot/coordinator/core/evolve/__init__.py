"""`evolve(state, fact)`: the only way the State changes, live and at replay alike.

A fact is past tense, complete and integer-only, so that replaying the journal never decides anything again. Facts are
tagged MessagePack arrays on disk; fields are only ever appended, with a default (`journal.codec`). One small function
per fact. They trust the fact: whether it should happen was decided before it was journalled. What
they do not trust is the book-keeping, so the inventory and the transition table raise where it would become inexact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from aliquot.coordinator.core.evolve import (
    access,
    demand,
    elastic,
    enrolment,
    health,
    holds,
    leading,
    leases,
    ledger,
    maintenance,
    mig,
    nodes,
    supply,
    tenancy,
    use,
)
from aliquot.coordinator.core.evolve.counting import recount_all
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact


def evolve(state: State, fact: Fact) -> None:
    """Apply one fact. Raises BrokenInvariant or InventoryError when the books would contradict themselves."""
    state.seq += 1
    state.now_ms = max(state.now_ms, fact.at_ms)
    _APPLY[type(fact)](state, fact)


SUBJECTS = (
    nodes.SUBJECT,
    tenancy.SUBJECT,
    leases.SUBJECT,
    leading.SUBJECT,
    maintenance.SUBJECT,
    mig.SUBJECT,
    holds.SUBJECT,
    elastic.SUBJECT,
    health.SUBJECT,
    use.SUBJECT,
    access.SUBJECT,
    enrolment.SUBJECT,
    ledger.SUBJECT,
    demand.SUBJECT,
    supply.SUBJECT,
)
"""In the order in which their indexes are derived."""

# One flat table: every fact, live and at replay, goes through it.
_APPLY: dict[type[Fact], Callable[[State, Any], None]] = {
    kind: apply for subject in SUBJECTS for kind, apply in subject.apply.items()
}

ANY_FACT: Any = reduce(or_, _APPLY)
"""The union of all facts, for decoders: what is journalled is what is applied."""


def rebuild_indexes(state: State) -> None:
    """Derive every index of a State whose books are set and whose indexes are empty, as when a snapshot is loaded."""
    for subject in SUBJECTS:
        if subject.index is not None:
            subject.index(state)
    recount_all(state)  # over all subjects: who holds what, and what is kept for whom
    state.offer_again()

"""Questions that need trial placements. They are answered from the State and change nothing.

Everything else is read from the View. A `Query[T]` is answered with a T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.placement.survey import NodeFit
from aliquot.coordinator.core.values.types import RequestSpec

T_co = TypeVar("T_co", covariant=True)


class Query(Generic[T_co]):
    """A question, and what it is answered with. Equal queries have equal answers at one moment."""

    __slots__ = ()
    remembered: ClassVar[bool] = True
    """Whether its answer is kept until something changes: it is small, and many ask the same."""


@dataclass(frozen=True, slots=True)
class Explain(Query[Explained]):
    """What would become of this request now? Ends before anything changes."""

    request: RequestSpec


@dataclass(frozen=True, slots=True)
class ExplainLease(Query[Explained]):
    """Why is this lease where it is?"""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Fits(Query[tuple[NodeFit, ...]]):
    """Which of these nodes could take one member of this request now, and how do they compare?"""

    remembered = False
    request: RequestSpec
    node_ids: tuple[str, ...] = ()
    """Empty: all."""


@dataclass(frozen=True, slots=True, eq=False)
class DryRun(Query[T_co]):
    """How would this command be answered? Costs as much as deciding it."""

    remembered = False
    command: Command[T_co]

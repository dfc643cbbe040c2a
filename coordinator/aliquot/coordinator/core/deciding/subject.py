"""What a subject decides: which commands it answers to, which queries, and what it does when something is due.

One value for each subject, at the end of its module; `subjects.SUBJECTS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due

Decide = Callable[[Known, Any, int], Decision[Any]]
Answer = Callable[[Known, Any, int], Any]
Look = Callable[[Known, str, int], list[Fact]]
"""(what is known, the subject of the entry, now_ms) -> what follows; nothing where it was not due after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decides:
    """See the module's docstring."""

    commands: Mapping[type[Command[Any]], Decide] = field(default_factory=dict)
    queries: Mapping[type[Query[Any]], Answer] = field(default_factory=dict)
    due: Mapping[Due, Look] = field(default_factory=dict)

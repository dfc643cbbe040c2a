"""What a subject puts into the State: facts that change it, indexes derived from it, and how it is saved.

One value for each subject, at the end of its module in `evolve`; `SUBJECTS` lists them, and everything that goes over
all subjects goes over that list. So a new fact with an index touches its subject's module, and no table elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.coordinator.core.evolve.saving import Saved
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """See the module's docstring."""

    name: str
    apply: Mapping[type[Fact], Callable[[State, Any], None]] = field(default_factory=dict)
    """How each of its facts changes the State. They trust the fact: it was decided before it was journalled."""
    index: Callable[[State], None] | None = None
    """Derive its indexes from the books. Those of the subjects before it in the list are there."""
    saves: tuple[Saved, ...] = ()
    """Its books, as snapshots hold them."""

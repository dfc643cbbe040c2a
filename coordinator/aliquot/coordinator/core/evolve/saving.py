"""What a subject puts into the State and into snapshots: its books, field by field, and how each is put back.

Only what can't be derived is saved. The order of everything is fixed, so that equal books give equal bytes, whatever
the order of events or the hash seed was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact

Kind = Any
"""The type of a field: whatever a decoder takes."""


Sharing = Callable[[], Callable[[Any], Any]]
"""Gives back the record that it gets. Begins anew with each snapshot that is read."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One field of a snapshot."""

    name: str
    kind: Kind
    read: Callable[[State], Any]
    restore: Callable[[State, Any], None]
    """Put it into a fresh State; those before it in the list are there."""
    default: Any = ()
    """Of a snapshot that was written before there was such a field."""
    sharing: Sharing | None = None
    """Of a tuple so long that its records are decoded one by one: has each refer to what those before it have, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a subject puts into the State: facts that change it, indexes derived from it, and how it is saved.

    One value for each subject, at the end of its module; `SUBJECTS` lists them, and everything that goes over all
    subjects goes over that list. So a new fact with an index touches its subject's module, and no table elsewhere.
    """

    name: str
    apply: Mapping[type[Fact], Callable[[State, Any], None]] = field(default_factory=dict)
    """How each of its facts changes the State. They trust the fact: it was decided before it was journalled."""
    index: Callable[[State], None] | None = None
    """Derive its indexes from the books. Those of the subjects before it in the list are there."""
    saves: tuple[Saved, ...] = ()
    """Its books, as snapshots hold them."""


def value(name: str, kind: Kind, path: str, default: object) -> Saved:
    """An attribute that is one value. `path` leads to it from the State, as in `access.next_entry`."""
    owner, _, attribute = path.rpartition(".")

    def restore(state: State, saved: object) -> None:
        setattr(attrgetter(owner)(state) if owner else state, attribute, saved)

    return Saved(name, kind, attrgetter(path), restore, default)


def records(
    name: str, kind: Kind, path: str, *, key: str, order: str | None = None, sharing: Sharing | None = None
) -> Saved:
    """A mapping, saved as its records. `key`: the attributes of a record by which it is found. Sorted by these, or by
    `order`; where that is empty, as they came.
    """
    found, key_of = attrgetter(path), attrgetter(*key.split())
    rank = attrgetter(*order.split()) if order else key_of

    def read(state: State) -> tuple[Any, ...]:
        every = found(state).values()
        return tuple(every) if order == "" else tuple(sorted(every, key=rank))

    def restore(state: State, saved: tuple[Any, ...]) -> None:
        found(state).update((key_of(record), record) for record in saved)

    return Saved(name, tuple[kind, ...], read, restore, sharing=sharing)


def pairs(name: str, kind: Kind, path: str) -> Saved:
    """A mapping from strings, saved as pairs, sorted."""
    found = attrgetter(path)
    return Saved(
        name,
        tuple[tuple[str, kind], ...],
        lambda state: tuple(sorted(found(state).items())),
        lambda state, saved: found(state).update(saved),
    )


def rows(name: str, kind: Kind, path: str) -> Saved:
    """A list or a deque, in its order."""
    found = attrgetter(path)
    return Saved(
        name, tuple[kind, ...], lambda state: tuple(found(state)), lambda state, saved: found(state).extend(saved)
    )

"""All that a State holds, books and indexes: to see that deciding changes none of it.

What can't change is kept as it is: it costs nothing to copy, and nothing to compare with itself. All else is copied, as
deep as it goes, and once, however often it is met.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from inspect import get_annotations
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

import msgspec

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.state import State
from tests.core.inventories import canonical

_ATOMS = (str, int, float, bytes, type(None), enum.Enum, FunctionType, MethodType)
_CHANGEABLE = ("dict[", "list[", "set[", "deque[", "Mapping[", "Any", "object")
"""A record with a field so annotated may hold what changes."""

_Seen = dict[int, int]
"""Objects that were met, by identity, and when."""


def contents(state: State) -> object:
    """Equal values: equal books, equal indexes, in equal order, and equal versions."""
    return _told_mapping(vars(state), {})


@cache
def _is_fixed(kind: type) -> bool:
    """Whether nothing in a value of this kind can change: it is an atom, or a frozen record of such."""
    if issubclass(kind, msgspec.Struct):
        annotations = [str(each) for base in kind.__mro__ for each in get_annotations(base).values()]
        fixed = kind.__struct_config__.frozen and not any(word in each for each in annotations for word in _CHANGEABLE)
    else:
        fixed = issubclass(kind, _ATOMS)
    if fixed:
        _FIXED.add(kind)
    return fixed


_FIXED: set[type] = set()
"""Kinds that were found to be fixed: most of what is met is of these, and seen to be at once."""


@cache
def _teller(kind: type) -> Callable[[Any, _Seen], Any]:
    """How values of this kind are copied."""
    if _is_fixed(kind):
        return lambda value, _: value
    if issubclass(kind, Inventory):
        return lambda value, _: canonical(value)  # its log of changes goes on where something was tried
    if issubclass(kind, Mapping):
        return _told_mapping
    if issubclass(kind, set | frozenset):
        return lambda value, _: frozenset(value)
    if issubclass(kind, list | tuple | deque):
        return _told_all
    names = tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))

    def told_object(value: Any, seen: _Seen) -> Any:
        known = seen.get(id(value))
        if known is not None:
            return kind, known
        seen[id(value)] = len(seen)
        if not names:
            return kind, _told_mapping(vars(value), seen)
        return kind, _told_all([getattr(value, name, _UNSET) for name in names], seen)

    return told_object


_UNSET = None, "a slot that was never set"
_NOTHING: Any = (), ()


def _told_all(values: Iterable[Any], seen: _Seen) -> tuple[Any, ...]:
    kept = tuple(values)
    if _all_fixed(kept):
        return kept
    told = []
    for value in kept:
        kind: type = type(value)
        told.append(value if kind in _FIXED else _teller(kind)(value, seen))
    return tuple(told)


def _all_fixed(values: tuple[Any, ...]) -> bool:
    """Whether nothing in these can change: they are fixed, or tuples of what is, to any depth."""
    while values:
        kinds = set(map(type, values))
        if kinds <= _FIXED:
            return True
        changeable = [kind for kind in kinds if not _is_fixed(kind)]
        if not all(issubclass(kind, tuple) for kind in changeable):
            return False
        values = tuple(chain.from_iterable(each for each in values if isinstance(each, tuple))) if changeable else ()
    return True


def _told_mapping(values: Mapping[Any, Any], seen: _Seen) -> Any:
    if not values:
        return _NOTHING
    return _told_all(values, seen), _told_all(values.values(), seen)

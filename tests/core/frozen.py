"""All that a State holds, books and indexes, as one text: to see that deciding changes none of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.state import State

_PLAIN = (str, int, bytes, bool, type(None), msgspec.Struct)


def contents(state: State) -> str:
    """Equal texts: equal books, equal indexes, in equal order, and equal versions."""
    return repr({name: _told(value) for name, value in vars(state).items()})


def _told(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Inventory):
        return value.canonical()  # its log of changes goes on where something was tried
    if isinstance(value, Mapping):
        return [(_told(key), _told(each)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque):
        return [_told(each) for each in value]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = slots or list(vars(value))
    return type(value).__name__, [(name, _told(getattr(value, name))) for name in names if hasattr(value, name)]

"""A mapping with a bound: what is remembered is what was put there last."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(OrderedDict[K, V]):
    """The `most` entries that were set last; one that is set again counts as new, and what is read is not moved."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)

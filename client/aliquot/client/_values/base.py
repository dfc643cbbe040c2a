"""What all values have in common."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


UNBOUNDED = "unbounded"
"""Metadata of sums that may exceed 64 bits; in JSON they are strings, because many readers keep only 53 bits."""


class Word(enum.StrEnum):
    """A state by its name in the contract; names that only a newer coordinator knows become `UNSPECIFIED`."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a list."""

    items: tuple[Item, ...]
    next_token: str
    """Names the next page; empty: this is the last one."""
    seq: int
    """A `watch` from here misses nothing; 0: this list does not say."""

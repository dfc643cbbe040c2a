"""Names of traces and spans: they follow from the lease alone, so every leader gives the same ones.

A launcher that traces itself says so in the lease's label `traceparent`, as W3C Trace Context writes it: then the
lease is a part of that trace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

LABEL: Final = "traceparent"
_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Place(NamedTuple):
    """Where a lease's root span stands."""

    trace_id: str
    """32 hexadecimal digits, not all zeros."""
    parent_id: str = ""
    """16 of them, or empty: it has no parent."""


def place_of(lease_id: str, labels: Iterable[tuple[str, str]]) -> Place:
    """In its launcher's trace, or in one of its own."""
    for name, value in labels:
        found = _PARENT.fullmatch(value) if name == LABEL else None
        if found is not None and found[1].strip("0") and found[2].strip("0"):
            return Place(found[1], found[2])
    return Place(_digest(lease_id)[:32])


def span_id_of(lease_id: str, name: str, number: int = 0) -> str:
    """16 hexadecimal digits, not all zeros, for the `number`-th span of that name."""
    return _digest(f"{lease_id}/{name}/{number}")[:16]


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).hexdigest()
    return found if found[:16].strip("0") else "1" + found[1:]

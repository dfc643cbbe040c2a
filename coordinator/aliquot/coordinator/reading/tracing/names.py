"""Names of traces and spans: they follow from the lease alone, so every leader gives the same ones."""

from __future__ import annotations

import hashlib


def trace_id_of(lease_id: str) -> str:
    """32 hexadecimal digits. Never all zeros."""
    return _digest(lease_id)[:32]


def span_id_of(lease_id: str, name: str, number: int = 0) -> str:
    """16 hexadecimal digits, for the `number`-th span of that name. Never all zeros."""
    return _digest(f"{lease_id}/{name}/{number}")[:16]


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).hexdigest()
    return found if found[:32].strip("0") and found[:16].strip("0") else "1" + found[1:]

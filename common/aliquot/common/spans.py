"""Spans of time, from when to when in milliseconds: disjoint, the earliest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

SPANS_MAX = 64
"""In one message: the latest of them."""
Spans: TypeAlias = tuple[tuple[int, int], ...]


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Those that meet are one, so that no moment counts twice."""
    found: list[tuple[int, int]] = []
    for begin_ms, end_ms in sorted(spans):
        if found and begin_ms <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_ms)
        else:
            found.append((begin_ms, end_ms))
    return tuple(found)


def recent(spans: Spans, since_ms: int) -> Spans:
    """The parts of them after a moment."""
    return tuple((max(begin_ms, since_ms), end_ms) for begin_ms, end_ms in spans if end_ms > since_ms)

"""Durations as people write them (`250ms`, `5s`, `1h30m`), as whole milliseconds. A bare number is refused."""

from __future__ import annotations

import re
from typing import Final

from aliquot.common.errors import DurationError
from aliquot.common.quantity import exact_decimal

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
MAX_DURATION_MS: Final = 100 * 366 * 86_400_000
"""A hundred years: anything longer is a mistake."""
MAX_DURATION_CHARS: Final = 64

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[dhms]))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])")
_HINT: Final = "write a number with d, h, m, s or ms, such as 250ms, 5s or 1h30m"


class DurationMs(int):
    """Whole milliseconds that settings state as text: `heartbeat = "5s"`."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_duration_ms(self)


def parse_duration_ms(text: str) -> int:
    """Reads a duration, units from long to short, as milliseconds.

    Raises `DurationError` for anything else, for fractions of a millisecond and beyond a hundred years.
    """
    stripped = text.strip()
    if len(stripped) > MAX_DURATION_CHARS or not _DURATION.fullmatch(stripped):
        hint = f"did you mean {stripped}s or {stripped}ms?" if stripped.isdecimal() else _HINT
        raise DurationError(f"{stripped[:MAX_DURATION_CHARS]!r} is not a duration", hint=hint)
    parts = _PART.findall(stripped)
    units = [_UNITS_MS[unit] for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        raise DurationError(f"{stripped!r} does not name each unit once, from long to short", hint=_HINT)
    total = sum(exact_decimal(number) * _UNITS_MS[unit] for number, unit in parts)
    if total != int(total):
        raise DurationError(f"{stripped!r} is not a whole number of milliseconds", hint=_HINT)
    if total > MAX_DURATION_MS:
        raise DurationError(f"{stripped!r} is longer than a hundred years", hint=_HINT)
    return int(total)


def format_duration_ms(duration_ms: int) -> str:
    """Writes milliseconds so that they read back exactly: `1h30m`, `1s500ms`, `0s`. Raises `ValueError` below zero."""
    if duration_ms < 0:
        raise ValueError(f"negative duration: {duration_ms} ms")
    written = ""
    for unit, unit_ms in _UNITS_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        written += f"{count}{unit}" if count else ""
    return written or "0s"

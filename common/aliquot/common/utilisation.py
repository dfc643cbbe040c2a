"""A weighted score of how much a device is used, with the names and thresholds that dashboards know it by.

It says how busy a card looks, and decides nothing here: a server that nobody asks anything, with its memory full,
scores 19, and a quarter-card lease that uses all of its share 26.
"""

from __future__ import annotations

import enum
from typing import Final

GPU_UTIL_WEIGHT: Final = 0.5
MEM_COPY_WEIGHT: Final = 0.2
MEM_USED_WEIGHT: Final = 0.2
POWER_WEIGHT: Final = 0.1
LOW_SCORE: Final = 20.0
"""`THRESHOLD`: findings are told below it."""


class Utilisation(enum.StrEnum):
    """What a score is called."""

    IDLE = "idle"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    UNKNOWN = "unknown"
    """Never taken for idleness."""


def score(
    gpu_percent: int | None,
    copy_percent: int | None,
    memory_used_bytes: int | None,
    memory_total_bytes: int,
    power_mw: int | None,
    power_limit_mw: int | None,
) -> float | None:
    """0 to 100: half how busy it is, a fifth each how busy and how full its memory is, a tenth its power of its limit.

    None where how busy it is is not known. What else is not known counts as nothing.
    """
    if gpu_percent is None:
        return None
    memory = 100.0 * (memory_used_bytes or 0) / memory_total_bytes if memory_total_bytes else 0.0
    power = 100.0 * (power_mw or 0) / power_limit_mw if power_limit_mw else 0.0
    found = (
        GPU_UTIL_WEIGHT * gpu_percent
        + MEM_COPY_WEIGHT * (copy_percent or 0)
        + MEM_USED_WEIGHT * min(100.0, memory)
        + POWER_WEIGHT * min(100.0, power)
    )
    return round(found, 1)


def status_of(value: float | None) -> Utilisation:
    """Below 10 idle, below 20 low, up to 70 normal, above that high."""
    if value is None:
        return Utilisation.UNKNOWN
    if value < 10:
        return Utilisation.IDLE
    if value < LOW_SCORE:
        return Utilisation.LOW
    return Utilisation.NORMAL if value <= 70 else Utilisation.HIGH

"""A weighted score of how much a device is used, with the names and thresholds that dashboards know it by.

It says how busy a card looks, and decides nothing here: a server that nobody asks anything, with its memory full,
scores 19, and a quarter-card lease that uses all of its share 26.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Weights(NamedTuple):
    """How much each part counts."""

    gpu_util: float = 0.5
    mem_copy: float = 0.2
    mem_used: float = 0.2
    power: float = 0.1


class Bounds(NamedTuple):
    """Below which score a device is idle, below which it is low (`THRESHOLD`), and up to which it is normal."""

    idle: float = 10.0
    low: float = 20.0
    normal: float = 70.0


USUAL_WEIGHTS: Final = Weights()
USUAL_BOUNDS: Final = Bounds()


class Utilisation(enum.StrEnum):
    """What a score is called."""

    IDLE = "idle"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    UNKNOWN = "unknown"
    """Never taken for idleness."""


def percent(part: float | None, whole: float | None) -> float | None:
    """0 to 100; None where either is not known."""
    return None if part is None or not whole else min(100.0, 100.0 * part / whole)


def score(
    gpu_percent: float | None,
    copy_percent: float | None,
    memory_percent: float | None,
    power_percent: float | None,
    weights: Weights = USUAL_WEIGHTS,
) -> float | None:
    """0 to 100: by the usual weights half how busy it is, a fifth each how busy and how full its memory is, a tenth its
    power of its limit.

    None where how busy it is is not known. What else is not known is left out, and the rest counts for it: a card that
    does not tell its power is not the idler for it.
    """
    if gpu_percent is None:
        return None
    parts = zip(weights, (gpu_percent, copy_percent, memory_percent, power_percent), strict=True)
    known = [(weight, value) for weight, value in parts if value is not None]
    whole = sum(weight for weight, _ in known)
    return round(sum(weight * value for weight, value in known) / whole, 1) if whole else None


def status_of(value: float | None, bounds: Bounds = USUAL_BOUNDS) -> Utilisation:
    """By the usual bounds: below 10 idle, below 20 low, up to 70 normal, above that high."""
    if value is None:
        return Utilisation.UNKNOWN
    if value < bounds.low:
        return Utilisation.IDLE if value < bounds.idle else Utilisation.LOW
    return Utilisation.NORMAL if value <= bounds.normal else Utilisation.HIGH

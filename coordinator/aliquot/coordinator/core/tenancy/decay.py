"""Usage that fades: an average of what was held, in which the past counts for half after each half-life.

In integers, so that a replay on any machine gives the same order of tenants. An average moves from `old` towards
`held` as
    new = held + (old - held) * 2^(-elapsed / half_life)
which is exact for a constant `held`, however often it is brought up to date in between (but for rounding).
"""

from __future__ import annotations

from math import isqrt

FRACTION_BITS = 20
"""Averages carry so many bits behind the point."""
_FACTOR_BITS = 64
_STEPS = 256
_LN2_MILLIONTHS = 693_147


def _factors() -> tuple[int, ...]:
    """2^(-i / 256), by repeated square roots of one half."""
    bits = 2 * _FACTOR_BITS
    root = 1 << (bits - 1)
    for _ in range(8):
        root = isqrt(root << bits)
    factors = [1 << bits]
    for _ in range(_STEPS - 1):
        factors.append(factors[-1] * root >> bits)
    return tuple(factor >> _FACTOR_BITS for factor in factors)


_FACTORS = _factors()


def remaining(elapsed_ms: int, half_life_ms: int) -> int:
    """2^(-elapsed / half_life) in units of 2^-64."""
    halves, rest = divmod(elapsed_ms, half_life_ms)
    if halves >= _FACTOR_BITS:
        return 0
    step, rest = divmod(rest * _STEPS, half_life_ms)
    factor = _FACTORS[step] >> halves
    # What is left is under 1/256 of a half-life, where 1 - x ln 2 is right to one part in 250,000.
    return factor - factor * rest * _LN2_MILLIONTHS // (half_life_ms * _STEPS * 1_000_000)


def faded(average: int, held: int, elapsed_ms: int, half_life_ms: int) -> int:
    """The average (with `FRACTION_BITS`) after `held` (without) was held for so long."""
    if elapsed_ms <= 0:
        return average
    target = held << FRACTION_BITS
    return target + ((average - target) * remaining(elapsed_ms, half_life_ms) >> _FACTOR_BITS)

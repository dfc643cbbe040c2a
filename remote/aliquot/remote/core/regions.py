"""Whether what is asked for lies within an allocation: plain arithmetic on whole numbers that a client has sent."""

from __future__ import annotations

BYTES_MAX = 1 << 48
"""Of any size or offset: no sum or product of two of them, taken as here, passes 128 bits."""


class RegionError(ValueError):
    """Bytes outside an allocation. Its text says which."""


def check_range(offset: int, size: int, held: int) -> None:
    """That `size` bytes from `offset` on lie in an allocation of `held` bytes.

    Raises:
        RegionError: they don't.
    """
    if not (0 <= offset <= BYTES_MAX and 0 <= size <= BYTES_MAX) or offset + size > held:
        raise RegionError(f"{size} bytes at {offset} don't lie within an allocation of {held} bytes")


def overlap(first: int, second: int, size: int) -> bool:
    """Whether two ranges of one allocation, of the same size, have a byte in common."""
    return size > 0 and abs(first - second) < size

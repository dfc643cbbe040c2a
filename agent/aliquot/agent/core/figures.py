"""What processes that serve leases count: they belong to tenants, so only what is named here is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

FIGURES: Final = {
    "sessions": "Programs that use the lease from elsewhere.",
    "ops_total": "Operations that were done for them.",
    "waits_total": "Operations for whose result a program waited.",
    "up_bytes_total": "Bytes that came from them.",
    "down_bytes_total": "Bytes that went to them.",
    "resumed_total": "Connections that broke and were resumed.",
    "refused_total": "Connections that were refused.",
    "run_ahead_frames": "Frames that have come and are not done.",
    "memory_bytes": "Device memory that they hold, as the service counts it.",
}
"""What a service may say of itself, and what it is."""


class ServedReport(msgspec.Struct, frozen=True):
    """What is reported of a member that is served."""

    slice_id: str
    """The first of the member's."""
    figures: Mapping[str, int]
    rates: Mapping[str, int]
    """By the same names: what the sums rose by in a second, lately."""


RATED: Final = ("ops_total", "up_bytes_total", "down_bytes_total")


def rates(before: Mapping[str, int], now: Mapping[str, int], elapsed_s: float) -> dict[str, int]:
    """What sums rose by in a second; none where the process is another one by now."""
    if elapsed_s <= 0 or any(now.get(key, 0) < before.get(key, 0) for key in RATED):
        return {}
    return {key: round((now.get(key, 0) - before.get(key, 0)) / elapsed_s) for key in RATED}

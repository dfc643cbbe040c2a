"""Which version of the protocol two ends speak: the newest that both know."""

from __future__ import annotations

from typing import Final

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1


def choose(peer_min: int, peer_max: int, *, own_min: int = VERSION_MIN, own_max: int = VERSION_MAX) -> int | None:
    """The version to speak; None: there is none that both know."""
    best = min(peer_max, own_max)
    return best if best >= max(peer_min, own_min) else None


def spoken(lowest: int, highest: int) -> str:
    """For messages that name both ends'."""
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"

"""How much one agent may have the coordinator do: it is not read on before it has waited for what it asked beyond that.

Far above what any node has to say, so that only one that is broken, or means harm, ever waits. Others go on meanwhile.
"""

from __future__ import annotations

from aliquot.common.limits import KIB, MIB

BURST_BYTES = 8 * MIB
"""Two of the largest messages."""
BYTES_PER_S = 256 * KIB
COMMAND_BYTES = 4 * KIB
"""What a command counts: as much as it takes to read so many bytes."""


class Pace:
    """Of one session. Bytes of messages are counted, and commands that follow from them."""

    __slots__ = ("_at_ms", "_left")

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: of a monotonic clock, as everywhere here."""
        self._left = float(BURST_BYTES)
        self._at_ms = now_ms

    def spend(self, cost_bytes: int) -> None:
        """Count it."""
        self._left -= cost_bytes

    def wait_s(self, now_ms: int) -> float:
        """How long it has to wait."""
        earned = (now_ms - self._at_ms) * BYTES_PER_S / 1000
        self._left = min(self._left + earned, float(BURST_BYTES))
        self._at_ms = now_ms
        return max(0.0, -self._left / BYTES_PER_S)

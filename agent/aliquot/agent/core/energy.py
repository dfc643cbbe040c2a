"""What each slice's part is of the energy that its card has drawn, by the card's own counter: pure.

What the card draws when nothing is done is split by shares; the part of what nobody leases is nobody's. The rest goes
by the time that each one's programs used, and by shares among those who may have done it where that isn't told. So the
parts never exceed what was drawn, and are all of it while the card is leased as a whole.

"When nothing is done" is the least mean power that was seen of this card: too much where it has never been idle since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from aliquot.common.limits import WHOLE_SHARE_MILLI

SHORTEST_MS = 100
"""The counter moves in steps: over less than this they say nothing."""


class Part(msgspec.Struct, frozen=True):
    """A slice's part of a card."""

    share_milli: int
    busy_milli: int | None
    """Of the card's time, as its programs used it of late; None: not told."""


class Meter(msgspec.Struct):
    """Of one card."""

    mean_power_mw: int | None = None
    """Between the last two readings, so that no burst is missed; None: not known."""
    _last: tuple[int, int] | None = None
    """When it was read last, and millijoules."""
    _idle_mw: int | None = None
    _present: frozenset[str] = frozenset()

    def take(
        self, counter_mj: int | None, now_ms: int, parts: Mapping[str, Part], others_milli: int | None
    ) -> dict[str, int]:
        """What slices have drawn since the last reading, in millijoules. Not in it: who came since, or has left; time
        over which the counter began anew. `others_milli`: use by no slice's programs; None: there is some, not told.
        """
        last = self._last
        if counter_mj is not None and last is not None and 0 <= now_ms - last[0] < SHORTEST_MS:
            return {}
        self._last = None if counter_mj is None else (now_ms, counter_mj)
        present, self._present = self._present, frozenset(parts)
        self.mean_power_mw = None
        if counter_mj is None or last is None or counter_mj < last[1] or now_ms <= last[0]:
            return {}
        drawn_mj, elapsed_ms = counter_mj - last[1], now_ms - last[0]
        self.mean_power_mw = drawn_mj * 1000 // elapsed_ms
        self._idle_mw = min(self.mean_power_mw, self._idle_mw if self._idle_mw is not None else self.mean_power_mw)
        drawn = divide(drawn_mj, self._idle_mw * elapsed_ms // 1000, parts, others_milli)
        return {name: drawn[name] for name in parts if name in present}


def divide(drawn_mj: int, idle_mj: int, parts: Mapping[str, Part], others_milli: int | None) -> dict[str, int]:
    """Each one's part of what a card has drawn, of which `idle_mj` had been drawn had nothing been done."""
    shares = {name: part.share_milli for name, part in parts.items()}
    whole = max(WHOLE_SHARE_MILLI, sum(shares.values()))  # who borrows an idle lease's share lies on it
    busy = {name: part.busy_milli for name, part in parts.items() if part.busy_milli is not None}
    weights, total = busy, sum(busy.values()) + (others_milli or 0)
    if len(busy) < len(parts) or others_milli is None or not total:
        weights = {name: share for name, share in shares.items() if busy.get(name) != 0} or shares
        total = sum(weights.values()) if others_milli == 0 else whole
    above = dict(_split(drawn_mj - idle_mj, weights, total))
    return {name: mj + above.get(name, 0) for name, mj in _split(idle_mj, shares, whole)}


def _split(amount: int, weights: Mapping[str, int], total: int) -> Iterator[tuple[str, int]]:
    """To the last unit: the parts add up to the amount where the weights add up to the total."""
    before = 0
    for name, weight in weights.items():
        yield name, amount * (before + weight) // total - amount * before // total
        before += weight

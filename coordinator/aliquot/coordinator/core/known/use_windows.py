"""Windows of activity, one for each lease that is looked at: in memory, begun anew by a coordinator that takes over.

An agent's reading holds until its next one. What it said of a stretch of time is a *span*: how much of the stretch is
known, and the highest activity in it. Spans become buckets of one look each; a lease is idle when all of its slices
have been quiet for a whole window that is known well enough. What is not known is never idleness: it makes no spell of
idleness longer, and too much of it ends the spell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from aliquot.coordinator.core.books.use import QUIET, UseState

QUIET_MILLI = 10
"""No engine was busier than this: 1 %."""
BUSY_MILLI = 950
LOW_POWER_PERMILLE = 150
"""Of the way from what an idle device of its model draws to what it may draw."""
KNOWN_PERMILLE = 800
"""So much of a stretch must be known for it to count."""
BUCKETS = 20
"""Of looks, for the figures of efficiency: some ten minutes and more."""
LATELY = 3
"""Of these, for what a lease does just now."""


class Span(NamedTuple):
    """What is known of one slice over the stretch of one look."""

    slice_id: str
    length_ms: int
    known_ms: int
    peak_milli: int
    """The busiest engine, in thousandths of the device, at any moment."""
    low_milli: int
    """The same at the least busy moment."""
    busy_milli_ms: int
    """Its mean, times `known_ms`."""
    processes: int
    """Most of them at a time."""
    started: bool = False
    """More processes than before were there at some moment."""
    device_milli: int = -1
    """How busy its device says it is; -1: unknown."""
    power_permille: int = -1
    """Of the way from an idle device's power to its limit; -1: unknown."""
    alone: bool = False
    """Nobody else holds any of the device."""


class Efficiency(NamedTuple):
    """What a lease makes of its share, in thousandths of it."""

    median_permille: int
    p95_permille: int
    known_permille: int
    """Of the time that this is about."""


def classify(slice_ids: Sequence[str], spans: Sequence[Span], length_ms: int) -> UseState:
    """What all slices of a lease, however many members it has, did in one stretch. One that is active keeps all."""
    by_id = {span.slice_id: span for span in spans}
    found = [by_id.get(slice_id) for slice_id in slice_ids]
    known = [span for span in found if span is not None and span.known_ms]
    if any(span.peak_milli > QUIET_MILLI or span.started for span in known):
        everywhere = len(known) == len(found) and all(_is_hung(span) for span in known)
        return UseState.HUNG if everywhere else UseState.ACTIVE
    if len(known) < len(found) or not found:
        return UseState.UNKNOWN
    if any(span.known_ms * 1000 < length_ms * KNOWN_PERMILLE for span in known):
        return UseState.UNKNOWN
    if any(span.processes for span in known):
        # Where a device draws much for one lease alone that seems to do nothing, somebody is mistaken.
        contradicted = any(span.alone and span.power_permille > 2 * LOW_POWER_PERMILLE for span in known)
        return UseState.UNKNOWN if contradicted else UseState.IDLE
    if any(span.alone and span.device_milli >= BUSY_MILLI for span in known):
        return UseState.GHOST
    return UseState.HELD


def _is_hung(span: Span) -> bool:
    return span.low_milli >= BUSY_MILLI and span.alone and 0 <= span.power_permille <= LOW_POWER_PERMILLE


class Window:
    """One lease's. Times are the coordinator's."""

    __slots__ = ("_buckets", "_gap_ms", "_latest", "_spell", "known_ms", "lease_epoch", "looked_ms", "since_ms")

    def __init__(self, lease_epoch: int) -> None:
        self.lease_epoch = lease_epoch
        self.looked_ms = 0
        """When it was last looked at; 0: never."""
        self._spell = UseState.UNKNOWN
        """ACTIVE, HUNG, UNKNOWN, or IDLE for any quiet state."""
        self._latest = UseState.UNKNOWN
        self.since_ms = 0
        """When what it does now began."""
        self.known_ms = 0
        """For how long that was seen."""
        self._gap_ms = 0
        self._buckets: deque[tuple[int, int, int]] = deque(maxlen=BUCKETS)
        """(activity over share in thousandths, known_ms, length_ms) of the latest looks."""

    def add(self, now_ms: int, kind: UseState, length_ms: int, window_ms: int) -> None:
        """A look at the stretch that ends now."""
        self.looked_ms = now_ms
        spell = UseState.IDLE if kind in QUIET else kind
        if kind is UseState.UNKNOWN and self._spell in (UseState.IDLE, UseState.HUNG):
            self._gap_ms += length_ms
            if self._gap_ms * 1000 <= window_ms * (1000 - KNOWN_PERMILLE):
                return
        elif spell is self._spell:
            self._gap_ms = 0
            self.known_ms += length_ms
            self._latest = kind
            return
        self._spell, self._latest = spell, kind
        self.since_ms, self.known_ms, self._gap_ms = now_ms - length_ms, length_ms, 0

    def count(self, share_milli: int, spans: Sequence[Span]) -> None:
        """Keep what was made of the share in one look, for the figures of efficiency."""
        known_ms = sum(span.known_ms for span in spans)
        length_ms = sum(span.length_ms for span in spans)
        busy = sum(span.busy_milli_ms for span in spans)
        held = share_milli * known_ms
        self._buckets.append((min(1000, busy * 1000 * len(spans) // held) if held else 0, known_ms, length_ms))

    def state(self, window_ms: int) -> UseState:
        """What the lease does: quiet or hung only after a whole window of it."""
        if self._spell in (UseState.IDLE, UseState.HUNG):
            return self._latest if self.known_ms >= window_ms else UseState.UNKNOWN
        return self._spell

    @property
    def settling(self) -> bool:
        """Whether it may become quiet or hung: nothing is said of it until then."""
        return self._spell in (UseState.IDLE, UseState.HUNG)

    def efficiency(self) -> Efficiency | None:
        """Of the latest looks; None: nothing is known of them."""
        ratios = sorted(ratio for ratio, known_ms, _ in self._buckets if known_ms)
        length_ms = sum(length for _, _, length in self._buckets)
        if not ratios or not length_ms:
            return None
        known_ms = sum(known for _, known, _ in self._buckets)
        p95 = ratios[min(len(ratios) - 1, len(ratios) * 95 // 100)]
        return Efficiency(ratios[len(ratios) // 2], p95, min(1000, known_ms * 1000 // length_ms))

    def lately_permille(self) -> int | None:
        """What it made of its share in the latest looks; None: nothing is known of them."""
        latest = [(ratio, known_ms) for ratio, known_ms, _ in list(self._buckets)[-LATELY:] if known_ms]
        return sum(ratio * known_ms for ratio, known_ms in latest) // sum(ms for _, ms in latest) if latest else None


class UseWindows:
    """The windows of all leases that are looked at: part of the decider's memory."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def get(self, lease_id: str) -> Window | None:
        """The window of a lease; None: it was not looked at."""
        return self._windows.get(lease_id)

    def of(self, lease_id: str, lease_epoch: int) -> Window:
        """The window of a lease's present grant."""
        window = self._windows.get(lease_id)
        if window is None or window.lease_epoch != lease_epoch:
            window = self._windows[lease_id] = Window(lease_epoch)
        return window

    def forget(self, lease_id: str) -> None:
        """Nothing is measured of it any more."""
        self._windows.pop(lease_id, None)


class Seen(NamedTuple):
    """What is known of one lease since the last look."""

    lease_id: str
    spans: tuple[Span, ...]
    """Of the slices of which anything is known."""
    told: int = 0
    """How many warnings its launcher has had."""

"""What an administrator declares about maintenance, and how far each window has come.

A window covers the nodes with these ids, labels and pool, as far as each is given. During its lead time
nothing is placed there that would still run at its start.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.types import NodeSpec


class Phase(enum.IntEnum):
    """How far a window has come; numbers equal those of the contract."""

    PLANNED = 1
    """Nothing follows from it yet."""
    CLOSING = 2
    """Its lead time runs: only what ends before its start is placed on its nodes."""
    OPEN = 3
    """It lasts: nothing is placed on its nodes, and what ran there is told to go."""


class Occurrence(NamedTuple):
    """One time that a window is held: [starts_ms, ends_ms)."""

    starts_ms: int
    ends_ms: int

    def phase(self, lead_ms: int, now_ms: int) -> Phase | None:
        """How far it has come; None: it is over."""
        if now_ms >= self.ends_ms:
            return None
        if now_ms >= self.starts_ms:
            return Phase.OPEN
        return Phase.CLOSING if now_ms >= self.starts_ms - lead_ms else Phase.PLANNED


class WindowSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A window as declared. Times are those of a clock on the wall in `zone`."""

    name: str
    start: str
    """`2026-11-28T22:00:00`: of the first time, where it is weekly."""
    end: str
    zone: str = "UTC"
    """A name of the IANA time zone database."""
    weekly: bool = False
    lead_ms: int = 0
    grace_ms: int = 0
    """For leases that are told to go; 0: each lease's own."""
    node_ids: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by key; a node must have all of them."""
    pool: str = ""
    reason: str = ""

    def covers(self, node: NodeSpec) -> bool:
        """Whether the window covers this node."""
        if self.pool and node.pool != self.pool:
            return False
        if self.node_ids and node.node_id not in self.node_ids:
            return False
        return not self.labels or set(self.labels) <= set(node.labels)


class Window(msgspec.Struct, frozen=True):
    """A window in the books, with its present or next occurrence."""

    spec: WindowSpec
    phase: Phase
    starts_ms: int
    ends_ms: int

    @property
    def due_ms(self) -> int:
        """When it enters its next phase."""
        if self.phase is Phase.PLANNED:
            return self.starts_ms - self.spec.lead_ms
        return self.starts_ms if self.phase is Phase.CLOSING else self.ends_ms


class Closure(msgspec.Struct, frozen=True):
    """Why a node is closed by a window: what its record and its readers are told."""

    window: str
    phase: Phase
    starts_ms: int
    ends_ms: int
    reason: str = ""


def closure_of(windows: dict[str, Window], node: NodeSpec) -> Closure | None:
    """What closes a node, of several windows: the open one that ends last, else the one that starts first."""
    found: Window | None = None
    for window in windows.values():
        if window.phase is Phase.PLANNED or not window.spec.covers(node):
            continue
        if found is None or _rank(window) < _rank(found):
            found = window
    if found is None:
        return None
    return Closure(found.spec.name, found.phase, found.starts_ms, found.ends_ms, found.spec.reason)


def _rank(window: Window) -> tuple[int, int, str]:
    if window.phase is Phase.OPEN:
        return 0, -window.ends_ms, window.spec.name
    return 1, window.starts_ms, window.spec.name

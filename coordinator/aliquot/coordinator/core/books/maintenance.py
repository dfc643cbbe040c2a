"""What an administrator declares about maintenance, and how far each window has come.

A window covers the nodes with these ids, labels and pool, as far as each is given. During its lead time
nothing is placed there that would still run at its start.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import NodeSpec


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


# --------------------
# What has happened to maintenance windows.


class MaintenanceDeclared(Fact, frozen=True, tag="maint"):
    """A maintenance window was declared, with its present or next occurrence and how far that has come."""

    spec: WindowSpec
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceMoved(Fact, frozen=True, tag="maint>"):
    """A window entered this phase of this occurrence."""

    name: str
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceEnded(Fact, frozen=True, tag="maint-"):
    """A window was withdrawn, or was held for the last time: its nodes are open again."""

    name: str
    reason: str


# --------------------
# When a window is: from times on a wall clock in a time zone to milliseconds since the Unix epoch. Rules where a
# clock on the wall is put forward or back: a time that is skipped counts as if the clock had not been put forward
# (as RFC 5545 has it: 02:30 becomes 03:30); of a time that comes twice, a start is the first and an end is the
# last, so that a window is never shorter than its times may be read. A window that has no length that week, because
# all of it was skipped, is not held that week. The time zone database is a table that comes with the machine, and
# may say otherwise after an update. So it is asked only when something is decided: facts carry the milliseconds,
# and no replay ever asks it.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WEEK = timedelta(days=7)
WEEK_MS = 7 * 86_400_000
_SKIPPED_WEEKS_MAX = 8
"""No zone skips the same hour of the week more often in a row."""


def zone_of(name: str) -> tzinfo:
    """The zone of this name. Raises ValueError, saying so, where this machine knows none."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - loads what Python was built with, and few name a zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"the time zone {name!r} is not known here") from error


def wall_time(text: str) -> datetime:
    """A time on a wall clock. Raises ValueError for anything but `2026-11-28T22:00`, with seconds or without."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError(f"{text!r} says an offset; the zone is stated by itself")
    return moment.replace(microsecond=0)


def next_occurrence(spec: WindowSpec, now_ms: int) -> Occurrence | None:
    """The first time that the window is held that is not over by now; None: there is none any more.

    Raises ValueError for times or a zone that can't be read.
    """
    zone, start, end = zone_of(spec.zone), wall_time(spec.start), wall_time(spec.end)
    first = _held(zone, start, end)
    if not spec.weekly:
        return first if first.starts_ms < first.ends_ms and now_ms < first.ends_ms else None
    # A day too early at most: offsets differ by less than that, and what is over is passed by.
    weeks = max(0, (now_ms - first.ends_ms) // WEEK_MS - 1)
    for week in range(weeks, weeks + _SKIPPED_WEEKS_MAX):
        held = _held(zone, start + week * _WEEK, end + week * _WEEK)
        if held.starts_ms < held.ends_ms and now_ms < held.ends_ms:
            return held
    return None


def _held(zone: tzinfo, start: datetime, end: datetime) -> Occurrence:
    return Occurrence(first_ms(zone, start), last_ms(zone, end))


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def first_ms(zone: tzinfo, wall: datetime) -> int:
    """When a window that begins at a time on the wall does: the first, of one that comes twice."""
    return _ms(wall.replace(tzinfo=zone, fold=0))


def last_ms(zone: tzinfo, wall: datetime) -> int:
    """When a window that ends at a time on the wall does: the last, of one that comes twice."""
    # With fold=1 a skipped time is read with the offset after the gap, which is earlier: the later one is meant.
    return max(_ms(wall.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))


def moved_on(window: Window, now_ms: int) -> Occurrence | None:
    """The time after this one of a weekly window; None: it was held for the last time."""
    if not window.spec.weekly:
        return None
    try:
        return next_occurrence(window.spec, now_ms)
    except ValueError:
        # The zone was known when it was declared, and this machine has no such table. A week later is right but for
        # the hour that a clock is put forward or back; the window after that is right again where the table is.
        weeks = (now_ms - window.ends_ms) // WEEK_MS + 1
        return Occurrence(window.starts_ms + weeks * WEEK_MS, window.ends_ms + weeks * WEEK_MS)


def shown(at_ms: int) -> str:
    """A moment for people: `2026-11-28 22:00 UTC`."""
    return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%d %H:%M} UTC"

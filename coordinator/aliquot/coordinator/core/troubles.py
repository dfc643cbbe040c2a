"""Work on which deciding failed, because of a defect: tried again with back-off, then set aside until somebody says so.

Never journalled: a restarted coordinator simply tries everything again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

TRIES_MAX = 6
"""After so many failures a piece of work is set aside."""
REST_FIRST_MS = 500
"""Between the first failure and the next attempt; doubled with each that follows."""


class WorkKind(enum.StrEnum):
    """What was being looked at."""

    ADMISSION = "admission"
    """A waiting request."""
    TIMER = "timer"
    """Something that is due."""


class WorkKey(NamedTuple):
    """One piece of work."""

    kind: WorkKind
    subject: str
    """The lease, pool or window that it is about; may be empty."""
    due: int = 0
    """Of a timer: what is due."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A piece of work that failed."""

    work: WorkKey
    story: str
    """For people: what was being done."""
    error: str
    failures: int
    since_ms: int
    again_ms: int
    """When it is tried again; 0: it was set aside."""

    @property
    def set_aside(self) -> bool:
        """Whether it waits for somebody to say that it is to be tried again."""
        return not self.again_ms


class Troubles:
    """All of them. Empty in a coordinator without a defect, so that asking costs nothing."""

    def __init__(self) -> None:
        self.at_work: WorkKey | None = None
        """What is being looked at now."""
        self._story = ""
        self._known: dict[WorkKey, Trouble] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def begin(self, kind: WorkKind, subject: str, due: int = 0, story: str = "") -> None:
        """This is looked at from now on; should deciding fail, it is its fault."""
        self.at_work, self._story = WorkKey(kind, subject, due), story

    def failed(self, error: Exception, now_ms: int) -> Trouble | None:
        """Deciding failed: what about, if that is known, and what becomes of it."""
        work = self.at_work
        if work is None:
            return None
        self.at_work = None
        old = self._known.get(work)
        failures = old.failures + 1 if old is not None else 1
        again_ms = now_ms + (REST_FIRST_MS << (failures - 1)) if failures < TRIES_MAX else 0
        trouble = Trouble(
            work,
            self._story or f"{work.kind} {work.subject}".strip(),
            f"{type(error).__name__}: {error}",
            failures,
            old.since_ms if old is not None else now_ms,
            again_ms,
        )
        self._known[work] = trouble
        return trouble

    def rests(self, kind: WorkKind, subject: str, due: int, now_ms: int) -> bool:
        """Whether this is not to be looked at now."""
        trouble = self._known.get(WorkKey(kind, subject, due))
        return trouble is not None and (trouble.set_aside or now_ms < trouble.again_ms)

    def succeeded(self, kind: WorkKind, subject: str, due: int = 0) -> None:
        """It was looked at, and nothing failed."""
        self._known.pop(WorkKey(kind, subject, due), None)

    def drop(self, work: WorkKey) -> None:
        """There is no such work any more, or it is to be tried again at once."""
        self._known.pop(work, None)

    def next_ms(self, kind: WorkKind) -> int | None:
        """When the first of those that rest is tried again."""
        return min((t.again_ms for t in self._known.values() if t.again_ms and t.work.kind is kind), default=None)

    def all(self) -> tuple[Trouble, ...]:
        """Those that are known, in the order of their first failures."""
        return tuple(self._known.values())

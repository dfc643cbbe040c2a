"""Work on which deciding failed, because of a defect: tried again with back-off, then set aside until it is asked for.

Never journalled: a restarted coordinator simply tries everything again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from aliquot.coordinator.core.values.timers import TimerEntry

TRIES_MAX = 6
"""After so many failures a piece of work is set aside."""
REST_FIRST_MS = 500
"""Between the first failure and the next attempt; doubled with each that follows."""
REST_DOUBLED_MAX = 7
CHECKED_AT_ONCE = 16
"""So many are looked at in one go for work that is gone."""


class WorkKind(enum.StrEnum):
    """What was being looked at."""

    ADMISSION = "admission"
    """A waiting request; or, without a subject, the order in which all of them are tried, which is never set aside."""
    TIMER = "timer"
    """Something that is due."""


class WorkKey(NamedTuple):
    """One piece of work."""

    kind: WorkKind
    subject: str
    """The lease, pool, tenant or window that it is about; may be empty."""
    due: str = ""
    """Of a timer: what is due."""

    def __str__(self) -> str:
        what = f"what is due ({self.due})" if self.kind is WorkKind.TIMER else "admission"
        return f"{what} of {self.subject}" if self.subject else what


ORDER = WorkKey(WorkKind.ADMISSION, "")
"""The order in which all that wait are tried."""


class TimerPlace(NamedTuple):
    """Where a timer is, so that it is found again at once."""

    source: int
    """See `Known.due`."""
    entry: TimerEntry


@dataclass(frozen=True, slots=True)
class Trouble:
    """A piece of work that failed."""

    work: WorkKey
    error: str
    failures: int
    since_ms: int
    again_ms: int
    """When it is tried again; 0: it was set aside."""
    resting: bool = True
    """Of admission: it is not tried until its time has come."""
    timer: TimerPlace | None = None
    """Of a timer."""

    @property
    def set_aside(self) -> bool:
        """Whether it waits for somebody to say that it is to be tried again."""
        return not self.again_ms

    def __str__(self) -> str:
        return f"{self.work} failed {self.failures} times, lately with {self.error}"


class WorkFailed(Exception):
    """Deciding about a piece of work failed. Nothing was changed; the cause is the error."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class Troubles:
    """All of them. Empty in a coordinator without a defect, so that asking costs nothing."""

    def __init__(self) -> None:
        self.timers = 0
        """How many of them are timers."""
        self._at_work: WorkKey | None = None
        self._timer: TimerPlace | None = None
        self._known: dict[WorkKey, Trouble] = {}
        self._unchecked: list[WorkKey] = []

    def __bool__(self) -> bool:
        return bool(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, work: WorkKey) -> bool:
        return work in self._known

    def begin(self) -> None:
        """A decision begins: nothing is to blame yet."""
        self._at_work = self._timer = None

    @contextmanager
    def blaming(self, work: WorkKey, timer: TimerPlace | None = None) -> Iterator[None]:
        """Within, this is what is being decided on: blamed should that fail. Afterwards what was before is again."""
        before = self._at_work, self._timer
        self._at_work, self._timer = work, timer
        yield
        self._at_work, self._timer = before  # not where it raised: `failed` is to know

    def failed(self, error: Exception, now_ms: int) -> Trouble | None:
        """Deciding failed: on what, and what becomes of it; None where that is unknown."""
        work, timer = self._at_work, self._timer
        self.begin()
        if work is None:
            return None
        old = self._known.get(work)
        failures = old.failures + 1 if old is not None else 1
        again_ms = now_ms + (REST_FIRST_MS << min(failures - 1, REST_DOUBLED_MAX))
        if failures >= TRIES_MAX and work != ORDER:
            again_ms = 0
        since_ms = old.since_ms if old is not None else now_ms
        trouble = Trouble(work, f"{type(error).__name__}: {error}", failures, since_ms, again_ms, timer=timer)
        self._known[work] = trouble
        self.timers += old is None and timer is not None
        return trouble

    def rests(self, lease_id: str) -> bool:
        """Whether admission of this lease is not to be tried now."""
        trouble = self._known.get(WorkKey(WorkKind.ADMISSION, lease_id))
        return trouble is not None and trouble.resting

    def is_due(self, work: WorkKey, now_ms: int) -> bool:
        """Whether something that is due may be looked at now."""
        trouble = self._known.get(work)
        return trouble is None or 0 < trouble.again_ms <= now_ms

    def wake(self, lease_id: str, now_ms: int) -> None:
        """Try admission of this lease again, if its time has come."""
        work = WorkKey(WorkKind.ADMISSION, lease_id)
        trouble = self._known.get(work)
        if trouble is not None and 0 < trouble.again_ms <= now_ms:
            self._known[work] = replace(trouble, resting=False)

    def drop(self, work: WorkKey) -> None:
        """Forget a failure: the work succeeded, is gone, or is to be tried again."""
        gone = self._known.pop(work, None)
        self.timers -= gone is not None and gone.timer is not None

    def forget_gone(self, exists: Callable[[Trouble], bool]) -> None:
        """Forget those of work that is not there any more. Looks at a bounded number; next time, at others."""
        if not self._unchecked:
            self._unchecked = list(self._known)
        for work in self._unchecked[-CHECKED_AT_ONCE:]:
            trouble = self._known.get(work)
            if trouble is not None and not exists(trouble):
                self.drop(work)
        del self._unchecked[-CHECKED_AT_ONCE:]

    def next_due_ms(self) -> int | None:
        """When the first timer among those that rest is tried again."""
        times = (t.again_ms for t in self._known.values() if t.again_ms and t.timer is not None)
        return min(times, default=None)

    def about(self, subject: str = "") -> list[Trouble]:
        """Those of one subject (empty: all) in the order of their first failures."""
        return [trouble for work, trouble in self._known.items() if subject in ("", work.subject)]

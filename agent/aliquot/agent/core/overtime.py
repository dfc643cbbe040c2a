"""How long leases of a tenant were over their limits of late, whoever of their processes held the memory. Pure.

A look at a device tells of a moment. What counts between two looks is the worst that both allow: a lease that was over
its limit at either of them counts as over all the time between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.agent.core.model import ProcessKey

WINDOW_MS = 60_000
"""How long an offence counts."""


@dataclass(frozen=True, slots=True)
class Record:
    """What leases of one tenant have done within the window."""

    spans: tuple[tuple[int, int], ...] = ()
    """From when to when one was over a limit: disjoint, the earliest first."""
    killed_ms: int | None = None
    """When all processes of one were killed last."""
    killed: frozenset[ProcessKey] = frozenset()
    """Those of them that were seen then: one that is slow to end is no new offence."""

    @property
    def over_ms(self) -> int:
        """The time over a limit, altogether."""
        return sum(end - begin for begin, end in self.spans)

    def add(self, begin_ms: int, end_ms: int) -> Record:
        """With one more span; where it meets others, time counts once."""
        apart = tuple(span for span in self.spans if span[1] < begin_ms or span[0] > end_ms)
        meeting = [span for span in self.spans if span not in apart]
        begin_ms = min([begin_ms, *(begin for begin, _ in meeting)])
        end_ms = max([end_ms, *(end for _, end in meeting)])
        return replace(self, spans=tuple(sorted((*apart, (begin_ms, end_ms)))))

    def note_killed(self, processes: frozenset[ProcessKey], now_ms: int) -> Record:
        """After all of its processes were killed."""
        return replace(self, killed_ms=now_ms, killed=self.killed | processes)

    def within(self, now_ms: int) -> Record | None:
        """What still counts; None: nothing does."""
        since_ms = now_ms - WINDOW_MS
        spans = tuple((max(begin, since_ms), end) for begin, end in self.spans if end > since_ms)
        killed_ms = self.killed_ms if self.killed_ms is not None and self.killed_ms > since_ms else None
        if not spans and killed_ms is None:
            return None
        return Record(spans, killed_ms, self.killed if killed_ms is not None else frozenset())

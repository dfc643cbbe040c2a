"""How long leases of a tenant were over their limits of late, whoever of their processes held the memory. Pure.

A look at a device tells of a moment. What counts between two looks is the worst that both allow: a lease that was over
its limit at either of them counts as over all the time between them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.model import ProcessKey
from aliquot.common.spans import Spans, joined, recent

WINDOW_MS = 60_000
"""How long an offence counts."""


class Seen(msgspec.Struct, frozen=True):
    """What was seen of leases of one tenant by one or several."""

    spans: Spans = ()
    """From when to when one was over a limit."""
    killed_ms: int | None = None
    """When all processes of one were killed last."""

    def within(self, now_ms: int) -> Seen | None:
        """What still counts; None: nothing does."""
        since_ms = now_ms - WINDOW_MS
        spans = recent(self.spans, since_ms)
        killed_ms = self.killed_ms if self.killed_ms is not None and self.killed_ms > since_ms else None
        return Seen(spans, killed_ms) if spans or killed_ms is not None else None


class Record(msgspec.Struct, frozen=True):
    """What leases of one tenant have done within the window."""

    here: Seen = Seen()
    """As this agent saw it."""
    elsewhere: Seen = Seen()
    """On other nodes, and here before this agent began: as the coordinator says. It takes the place of what it said
    before, so that no delay on the way adds up.
    """
    killed: frozenset[ProcessKey] = frozenset()
    """Processes that were killed here: one that is slow to end is no new offence."""

    @property
    def over_ms(self) -> int:
        """The time over a limit, altogether: what passed on two nodes at once counts once."""
        return sum(end - begin for begin, end in joined((*self.here.spans, *self.elsewhere.spans)))

    @property
    def punished(self) -> bool:
        """Whether all processes of one were killed already, on any node."""
        return self.here.killed_ms is not None or self.elsewhere.killed_ms is not None

    def add(self, begin_ms: int, end_ms: int) -> Record:
        """With one more span; where it meets others, time counts once."""
        return replace(self, here=replace(self.here, spans=joined((*self.here.spans, (begin_ms, end_ms)))))

    def note_killed(self, processes: frozenset[ProcessKey], now_ms: int) -> Record:
        """After all of its processes were killed."""
        return replace(self, here=replace(self.here, killed_ms=now_ms), killed=self.killed | processes)

    def within(self, now_ms: int) -> Record | None:
        """What still counts; None: nothing does."""
        here, elsewhere = self.here.within(now_ms), self.elsewhere.within(now_ms)
        if here is None and elsewhere is None:
            return None
        here = here or Seen()
        return Record(here, elsewhere or Seen(), self.killed if here.killed_ms is not None else frozenset())

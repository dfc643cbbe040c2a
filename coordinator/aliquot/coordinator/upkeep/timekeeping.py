"""The pool's time, where the clock of the machine that it begins on may be wrong.

Leases are charged by it and nothing takes it back, so a clock that is an hour ahead at a start must not become the
pool's. A coordinator among several compares its clock with the database's before it leads. One that is alone asks its
agents: after a gap, which may be time that it was away or a clock that was set, time goes on from the last record until
as many agents as needed show the same time as this machine. Where the record is ahead of the clock, it was wrong
before: time passes at half its pace until the clock has caught up, so that leases get back what they were charged.
"""

from __future__ import annotations

import logging

from aliquot.common.clock import Clock
from aliquot.common.latest import Latest

log = logging.getLogger(__name__)

WITNESSES = 5
"""So many agents that agree are enough, in a pool that has more than twice as many."""
_KEPT = 101


class Timekeeper(Clock):
    """See the module's docstring. On any thread; `heard` on one."""

    def __init__(self, machine: Clock, newest_ms: int, *, skew_max_ms: int, agents: int, patience_ms: int) -> None:
        """`newest_ms` is the last time on record, `agents` how many could be heard: after `patience_ms` in which nobody
        has contradicted it, the machine's clock is believed.
        """
        self._machine = machine
        self._skew_max_ms = skew_max_ms
        self._began_ms = machine.now_ms()
        gap_ms = self._began_ms - newest_ms
        self._fast_ms = max(0, -gap_ms)
        self._held_ms = gap_ms if agents and gap_ms > skew_max_ms else 0
        self._needed = min(WITNESSES, (agents + 1) // 2)
        self._patient_until_ms = machine.monotonic_ms() + patience_ms
        self._ahead_ms: Latest[str, int] = Latest(_KEPT)
        """By node, of those that were heard last: how far this machine's clock is ahead of its."""
        if self._fast_ms > skew_max_ms:
            log.error("the pool's time is %d s ahead of this machine's clock: it passes slowly", self._fast_ms // 1000)

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        if self._held_ms and self._machine.monotonic_ms() >= self._patient_until_ms:
            self._believe(0)
        now_ms = self._machine.now_ms()
        return now_ms + self._lead_ms(now_ms)

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self._machine.monotonic_ms()

    @property
    def ahead_of_machine_ms(self) -> int:
        """How far the pool's time is ahead of this machine's clock; negative: it is held back."""
        return self._lead_ms(self._machine.now_ms())

    @property
    def machine_ahead_of_agents_ms(self) -> int:
        """How far this machine's clock is ahead of most agents', as of their last connection; 0 where none has said."""
        return sorted(self._ahead_ms.values())[(len(self._ahead_ms) - 1) // 2] if self._ahead_ms else 0

    def heard(self, node_id: str, wall_ms: int) -> None:
        """An agent has said what its clock shows; 0: it has not."""
        if not wall_ms:
            return
        self._ahead_ms[node_id] = self._machine.now_ms() - wall_ms
        if self._held_ms and not self._believe(self._needed):
            ahead_s = self.machine_ahead_of_agents_ms // 1000
            log.error("this machine's clock is %d s ahead of agents': time is held back", ahead_s)

    def _believe(self, needed: int) -> bool:
        """Let time be the machine's, if so many agree and not more don't. Says whether it is."""
        agreeing = sum(abs(ahead_ms) <= self._skew_max_ms for ahead_ms in list(self._ahead_ms.values()))
        if agreeing < needed or 2 * agreeing < len(self._ahead_ms):
            return False
        log.info("time goes on %d s after the last record, which %d agents confirm", self._held_ms // 1000, agreeing)
        self._held_ms = 0
        return True

    def _lead_ms(self, now_ms: int) -> int:
        return -self._held_ms or self._fast_ms - min(self._fast_ms, (now_ms - self._began_ms) // 2)

"""Which leases truly held more than was written down for them, and since when: signals are judged by it."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.sim.loop import US_PER_MS, US_PER_S
from tests.simulation.sim.machine import SimMachine, SimProc

OVER_FOR_US = 2 * US_PER_S
"""A program that was over its limit may be signalled for it for so long afterwards."""
ANSWERS_FOR_US = 60 * US_PER_S
"""How long an excess counts against its lease."""
HEARD_LATE_US = 30 * US_PER_S
"""What agents hear of a tenant from other nodes is told by its age: a node, a link or a coordinator that is slow on the
way makes it look younger than it is.
"""
OBEY_US = 500 * US_PER_MS
"""From the first excess of any of its leases on, a tenant has this long at least to end it, before anything is killed.
"""

LimitOf = Callable[[SimMachine, str, int, str], int]
"""Bytes that a lease's member may hold of a device of a machine."""


@dataclass(slots=True)
class _Overrun:
    """What one lease did on one machine, with no longer pauses than an excess counts."""

    since_us: int
    last_us: int
    of_member_us: dict[int, int] = field(default_factory=dict)
    """When each of its members was last over a limit."""


class OverrunsAudit:
    """True at every moment, where the watchdog knows of its looks alone."""

    def __init__(self, limit_of: LimitOf, now_us: Callable[[], int], tenant_of: Callable[[str], str] = str) -> None:
        self._limit_of = limit_of
        self._tenant_of = tenant_of
        self._now_us = now_us
        self._overruns: dict[tuple[str, str], _Overrun] = {}
        """By host and lease."""

    def look(self, machine: SimMachine, lease_id: str) -> None:
        """What a lease holds of a machine's devices, or may hold, has changed, or is asked for."""
        held: defaultdict[tuple[int, str], int] = defaultdict(int)
        for proc in machine.procs.values():
            if proc.lease_id == lease_id:
                for uuid, size in proc.memory.items():
                    held[proc.member, uuid] += size
        for (member, uuid), total in held.items():
            if total > self._limit_of(machine, lease_id, member, uuid):
                self._note(machine.host, lease_id, member)

    def _note(self, host: str, lease_id: str, member: int) -> None:
        now_us = self._now_us()
        known = self._overruns.get((host, lease_id))
        if known is None or now_us - known.last_us > ANSWERS_FOR_US:
            known = self._overruns[host, lease_id] = _Overrun(now_us, now_us)
        known.last_us = known.of_member_us[member] = now_us

    def wrong(self, proc: SimProc, what: int) -> str:
        """What is wrong with a signal to a program of a lease that is not ending; empty: nothing is.

        A signal is for what the program's own member held. SIGKILL may be for any member of the lease on the machine,
        but is for nobody whose lease was within its limits until just now.
        """
        self.look(proc.machine, proc.lease_id)
        overrun = self._overruns.get((proc.machine.host, proc.lease_id))
        now_us = self._now_us()
        last_us = None
        if overrun is not None:
            last_us = overrun.last_us if what == signal.SIGKILL else overrun.of_member_us.get(proc.member)
        if overrun is None or last_us is None or now_us - last_us > OVER_FOR_US:
            return "is within its limits and not ending"
        since_us = self._since_us(proc.lease_id)
        if what == signal.SIGKILL and now_us - since_us < OBEY_US:
            return f"has been over its limits for {(now_us - since_us) // US_PER_MS} ms only"
        return ""

    def _since_us(self, lease_id: str) -> int:
        """Since when its tenant answers for leases, on whichever machine, also for ones that were given back."""
        tenant, oldest_us = self._tenant_of(lease_id), self._now_us() - ANSWERS_FOR_US - HEARD_LATE_US
        return min(
            each.since_us
            for (_, lease), each in self._overruns.items()
            if each.last_us >= oldest_us and self._tenant_of(lease) == tenant
        )

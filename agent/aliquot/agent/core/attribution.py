"""Which lease a process belongs to, and how surely.

Four kinds of evidence, strongest first; the first that applies decides:

1. *Cgroup*: the process is in a cgroup the agent made for a holder. Children can't leave it without the right
   to.
2. *Registered*: this very process (pid and start time) was attached.
3. *Descendant*: an ancestor is registered, alive, and itself proven by its start time.
4. *Session or group*: the process is in a session (or process group) that an attached process leads, and some
   process already proven to be the holder's is alive in it. The kernel does not give a number away again
   while a session or group of that number has a member, so a live proven member proves the others; without
   one, nothing is concluded.

Everything else is foreign: counted, never touched. A process attached to several leases counts, on each
device, against the one that has a slice there, the latest attachment first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from aliquot.agent.core.model import Holder, ProcessKey

MAX_ANCESTORS = 64
"""Deeper trees than this are not followed; a process below them is foreign unless other evidence names it."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What /proc says of one process."""

    key: ProcessKey
    parent_pid: int
    group_id: int
    session_id: int
    cgroup: str | None = None
    """Path in the cgroup v2 hierarchy; None where there is none."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A process that was attached to a holder."""

    holder: Holder
    process: ProcessKey
    order: int
    """Rises with every attachment of this node: the latest counts first."""
    leads_session: bool = False
    """It was the leader of its session when it was attached, so that whoever is in it came from it."""
    leads_group: bool = False
    contained: bool = False
    """It was put into its holder's cgroup, so that what it starts is found there."""
    origin_cgroup: str = ""
    """Where it was before, to be put back when it is detached."""


class Evidence(enum.StrEnum):
    """Why a process is taken to be a holder's."""

    CGROUP = "cgroup"
    REGISTERED = "registered"
    DESCENDANT = "descendant"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Belonging:
    """A process and the holders it may count against, the first one first."""

    process: ProcessKey
    holders: tuple[Holder, ...]
    evidence: Evidence


Lookup = Callable[[int], ProcessFacts | None]
"""Facts of a pid now; None where there is no such process, or it can't be seen."""


@dataclass(slots=True)
class Attributor:
    """Attributes processes of one scan. Members proven in it are remembered for the next, by pid and start
    time.
    """

    lookup: Lookup
    cgroups: Mapping[str, Holder]
    """The cgroup directories the agent made."""
    attachments: Collection[Attachment]
    proven: Mapping[ProcessKey, tuple[Holder, ...]] = field(default_factory=dict)
    """Members proven in earlier scans."""
    found: dict[ProcessKey, tuple[Holder, ...]] = field(default_factory=dict)
    """Members proven in this scan without a cgroup: `proven` of the next."""
    _seen: dict[int, ProcessFacts | None] = field(default_factory=dict)
    _holders_of: dict[ProcessKey, tuple[Holder, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in sorted(self.attachments, key=lambda item: -item.order):
            before = self._holders_of.get(item.process, ())
            if item.holder not in before:
                self._holders_of[item.process] = (*before, item.holder)

    def belonging(self, pid: int) -> Belonging | None:
        """Whose process it is; None: foreign, or gone."""
        facts = self._facts(pid)
        if facts is None:
            return None
        registered = self._holders_of.get(facts.key, ())
        by_cgroup = self._by_cgroup(facts.cgroup)
        if by_cgroup is not None:
            others = tuple(holder for holder in registered if holder != by_cgroup)
            return Belonging(facts.key, (by_cgroup, *others), Evidence.CGROUP)
        result = self._without_cgroup(facts, registered)
        if result is not None:
            self.found[facts.key] = result.holders
        return result

    def _without_cgroup(self, facts: ProcessFacts, registered: tuple[Holder, ...]) -> Belonging | None:
        if registered:
            return Belonging(facts.key, registered, Evidence.REGISTERED)
        if facts.key in self.proven:
            return Belonging(facts.key, self.proven[facts.key], Evidence.DESCENDANT)
        inherited = self._inherited(facts)
        if inherited:
            return Belonging(facts.key, inherited, Evidence.DESCENDANT)
        session = self._by_session(facts)
        return Belonging(facts.key, session, Evidence.SESSION) if session else None

    def _facts(self, pid: int) -> ProcessFacts | None:
        if pid not in self._seen:
            self._seen[pid] = self.lookup(pid)
        return self._seen[pid]

    def _by_cgroup(self, cgroup: str | None) -> Holder | None:
        while cgroup and cgroup != "/":
            holder = self.cgroups.get(cgroup)
            if holder is not None:
                return holder
            cgroup = cgroup.rpartition("/")[0]
        return None

    def _inherited(self, facts: ProcessFacts) -> tuple[Holder, ...]:
        child = facts
        for _ in range(MAX_ANCESTORS):
            parent = self._facts(child.parent_pid) if child.parent_pid > 1 else None
            # A parent is never younger than its child; one that is has taken over the pid of the real one.
            if parent is None or parent.key.start_ticks > child.key.start_ticks:
                return ()
            holders = self._holders_of.get(parent.key) or self.proven.get(parent.key, ())
            if holders:
                return holders
            child = parent
        return ()

    def _by_session(self, facts: ProcessFacts) -> tuple[Holder, ...]:
        owners = sorted(self.attachments, key=lambda item: -item.order)
        holders = []
        for item in owners:
            in_session = item.leads_session and facts.session_id == item.process.pid
            in_group = item.leads_group and facts.group_id == item.process.pid
            if (in_session or in_group) and self._has_proven_member(item, by_session=in_session):
                holders.append(item.holder)
        return tuple(dict.fromkeys(holders))

    def _has_proven_member(self, item: Attachment, *, by_session: bool) -> bool:
        candidates = [item.process, *(key for key, holders in self.proven.items() if item.holder in holders)]
        for key in candidates:
            facts = self._facts(key.pid)
            if facts is None or facts.key != key:
                continue
            if (facts.session_id if by_session else facts.group_id) == item.process.pid:
                return True
        return False

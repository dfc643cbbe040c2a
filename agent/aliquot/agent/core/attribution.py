"""Which lease a process belongs to, and by which evidence.

Four kinds of evidence, strongest first:

1. *Cgroup*: the process is in a cgroup the agent made for a holder, or in one that root attached to it. Children
   can't leave it without the right to.
2. *Registered*: this very process (pid and start time) was attached.
3. *Descendant*: it was born to a process that was registered by then, or that is itself a descendant of one.
   Every link is proven by start times: a parent is never younger than its child, and a child from before the
   attachment is not meant.
4. *Session or group*: it is in a session (or process group) that an attached process had for itself alone
   when it was attached, and some process proven to be the holder's is alive in it. The kernel does not give a
   number away again while a session or group of that number has a member, so a live proven member proves the
   others; without one, nothing is concluded.

Everything else is foreign: counted, never touched. A process may belong to several leases (attached twice, or
born into one and attached to another); it counts, on each device, against the one that has a slice there, the
latest attachment first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

import msgspec

from aliquot.agent.core.model import Holder, ProcessKey

MAX_ANCESTORS = 64
"""Deeper trees than this are not followed; a process below them is foreign unless other evidence names it."""


class ProcessFacts(msgspec.Struct, frozen=True):
    """What /proc says of one process."""

    key: ProcessKey
    parent_pid: int
    group_id: int
    session_id: int
    cgroup: str | None = None
    """Path in the cgroup v2 hierarchy; None where there is none."""


class Attachment(msgspec.Struct, frozen=True):
    """A process that was attached to a holder."""

    holder: Holder
    process: ProcessKey
    order: int
    """Rises with every attachment of this node: the latest counts first."""
    since_ticks: int = 0
    """When, in clock ticks after boot: children from before are not meant."""
    owns_session: bool = False
    """It led its session, and was alone in it, when it was attached: whoever is in it later came from it."""
    owns_group: bool = False
    """The same of its process group."""
    contained: bool = False
    """It was put into its holder's cgroup, so that what it starts is found there."""
    origin_cgroup: str = ""
    """Where it was before, to be put back when it is detached."""
    hosted: bool = False
    """The agent started it, to serve the lease."""


class AttachedCgroup(msgspec.Struct, frozen=True):
    """A cgroup that somebody else made and will remove, and whose processes are all a holder's."""

    holder: Holder
    path: str
    """As /proc/pid/cgroup names it to the agent."""
    inode: int
    """Of its directory: another one may come to have the same path."""


class Evidence(enum.StrEnum):
    """Why a process is taken to be a holder's."""

    CGROUP = "cgroup"
    REGISTERED = "registered"
    DESCENDANT = "descendant"
    SESSION = "session"


class Belonging(msgspec.Struct, frozen=True):
    """A process and the holders it may count against, the first one first."""

    process: ProcessKey
    holders: tuple[Holder, ...]
    evidence: Evidence


_BORN = 0
"""Since when, for those who were born into a lease."""

Lookup = Callable[[int], ProcessFacts | None]
"""Facts of a pid now; None where there is no such process, or it can't be seen."""


class Roster:
    """Who has been put where, as of now: what scans share as long as none of it changes."""

    __slots__ = ("attachments", "cgroups", "joined", "several")

    def __init__(self, cgroups: Mapping[str, Holder], attachments: Iterable[Attachment]) -> None:
        self.cgroups = cgroups
        """The cgroup directories the agent made, and those that were attached."""
        self.attachments = sorted(attachments, key=lambda item: -item.order)
        """The latest first."""
        self.joined: dict[ProcessKey, dict[Holder, int]] = {}
        """Registered processes: their holders, the latest first, and since when."""
        for item in self.attachments:
            self.joined.setdefault(item.process, {}).setdefault(item.holder, item.since_ticks)
        self.several = any(len(holders) > 1 for holders in self.joined.values())


class Attributor(msgspec.Struct):
    """Attributes processes of one scan. Members proven in it are remembered for the next, by pid and start time."""

    lookup: Lookup
    roster: Roster
    proven: Mapping[ProcessKey, tuple[Holder, ...]] = {}
    """Members proven in earlier scans."""
    found: dict[ProcessKey, tuple[Holder, ...]] = {}
    """Members proven in this scan without a cgroup: `proven` of the next."""
    seen: dict[int, ProcessFacts | None] = {}
    """Found in this scan, or just before it."""
    _memberships: dict[ProcessKey, dict[Holder, int]] = {}

    def belonging(self, pid: int) -> Belonging | None:
        """Whose process it is; None: foreign, or gone."""
        facts = self.facts(pid)
        if facts is None:
            return None
        by_cgroup = self._by_cgroup(facts.cgroup)
        if by_cgroup is None:
            return self._without_cgroup(facts)
        # Only where somebody has several leases are the ancestors, which cost a walk, searched for more holders.
        others = self._membership(facts) if self.roster.several else self.roster.joined.get(facts.key, {})
        return Belonging(facts.key, tuple(dict.fromkeys((by_cgroup, *others))), Evidence.CGROUP)

    def _without_cgroup(self, facts: ProcessFacts) -> Belonging | None:
        membership = self._membership(facts)
        if membership:
            evidence = Evidence.REGISTERED if facts.key in self.roster.joined else Evidence.DESCENDANT
            self._remember(facts.key, (holder for holder, since in membership.items() if since == _BORN))
            return Belonging(facts.key, tuple(membership), evidence)
        session = self._by_session(facts)
        self._remember(facts.key, session)
        return Belonging(facts.key, session, Evidence.SESSION) if session else None

    def _remember(self, key: ProcessKey, holders: Iterable[Holder]) -> None:
        kept = tuple(holders)
        if kept:
            self.found[key] = kept

    def facts(self, pid: int) -> ProcessFacts | None:
        """What is known of a process in this scan; None: it is gone."""
        if pid not in self.seen:
            self.seen[pid] = self.lookup(pid)
        return self.seen[pid]

    def _by_cgroup(self, cgroup: str | None) -> Holder | None:
        while cgroup and cgroup != "/":
            holder = self.roster.cgroups.get(cgroup)
            if holder is not None:
                return holder
            cgroup = cgroup.rpartition("/")[0]
        return None

    def _membership(self, facts: ProcessFacts, depth: int = 0) -> dict[Holder, int]:
        """The holders a process has joined (and since when) or was born into, without cgroups and sessions."""
        if facts.key in self._memberships:
            return self._memberships[facts.key]
        mine = dict(self.roster.joined.get(facts.key, {}))
        self._memberships[facts.key] = mine  # also ends the walk, should /proc ever tell of a circle
        for holder in self.proven.get(facts.key, ()):
            mine[holder] = _BORN
        parent = self.facts(facts.parent_pid) if facts.parent_pid > 1 and depth < MAX_ANCESTORS else None
        # A parent is never younger than its child; one that is has taken over the pid of the real one.
        if parent is not None and parent.key.start_ticks <= facts.key.start_ticks:
            for holder, since_ticks in self._membership(parent, depth + 1).items():
                if facts.key.start_ticks >= since_ticks:
                    mine[holder] = _BORN
        return mine

    def _by_session(self, facts: ProcessFacts) -> tuple[Holder, ...]:
        holders = []
        for item in self.roster.attachments:
            in_session = item.owns_session and facts.session_id == item.process.pid
            in_group = item.owns_group and facts.group_id == item.process.pid
            if (in_session or in_group) and self._has_proven_member(item, by_session=in_session):
                holders.append(item.holder)
        return tuple(dict.fromkeys(holders))

    def _has_proven_member(self, item: Attachment, *, by_session: bool) -> bool:
        candidates = [item.process, *(key for key, holders in self.proven.items() if item.holder in holders)]
        for key in candidates:
            facts = self.facts(key.pid)
            if facts is None or facts.key != key:
                continue
            if (facts.session_id if by_session else facts.group_id) == item.process.pid:
                return True
        return False

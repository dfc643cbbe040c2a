"""Tracks a lease's processes: by cgroup where there is one, else by session, process group and ancestry.

Both ways answer the same questions: add this process to a holder; which processes does a holder have; whose process is
this. The second way is weaker. A process that leaves its session when none of its known relatives lives any more can't
be attributed, and counts as foreign.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

import msgspec

from aliquot.agent.core.attribution import AttachedCgroup, Attachment, Attributor, Belonging, ProcessFacts, Roster
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.processes import proc as real_processes
from aliquot.agent.processes.cgroups import SERVICE, CgroupTree, ContainmentError
from aliquot.agent.processes.proc import Processes

log = logging.getLogger(__name__)


class ContainmentKind(enum.StrEnum):
    """How descendants are followed. The words are the local protocol's."""

    CGROUP = "CGROUP"
    PROCESS_GROUP = "PROCESS_GROUP"


class Tracking(msgspec.Struct, frozen=True):
    """How one process is tracked, and why not in a stronger way."""

    kind: ContainmentKind
    note: str = ""


_Known = tuple[frozenset[Holder], tuple[AttachedCgroup, ...], dict[str, Holder], Collection[Attachment], Roster]


class Containment(msgspec.Struct, eq=False):
    """Knows which processes belong to which holder.

    `holders` answers who has a reservation: processes of other holders are foreign.
    `attachments` and `attached_cgroups` are those of all holders, as kept on disk; `attachments` gives another object
    whenever one has changed.
    """

    tree: CgroupTree | None
    holders: Callable[[], frozenset[Holder]]
    attachments: Callable[[], Collection[Attachment]]
    why_no_tree: str = ""
    processes: Processes = real_processes
    attached_cgroups: Callable[[], Collection[AttachedCgroup]] = tuple
    _leaves: dict[str, Holder] = {}
    _proven: dict[ProcessKey, tuple[Holder, ...]] = {}
    _known: _Known | None = None

    def __post_init__(self) -> None:
        """Those that an agent before this one has left are known, too."""
        if self.tree is not None:
            self._leaves.update(self.tree.holders())

    @property
    def note(self) -> str:
        """Empty when cgroups are at work, else why they are not."""
        if self.tree is not None:
            return ""
        return f"processes are followed by session and ancestry only: {self.why_no_tree}"

    @property
    def base(self) -> str:
        """The cgroup below which holders have theirs, as /proc/pid/cgroup names it; empty: there is none."""
        return "" if self.tree is None else self.tree.base

    def place(self, process: ProcessKey, holder: Holder, *, hosted: bool = False) -> Tracking:
        """Have a process, and what it starts from now on, followed for a holder. `hosted`: it is to serve it."""
        if self.tree is None:
            return Tracking(ContainmentKind.PROCESS_GROUP, self.note)
        try:
            self.tree.add(process.pid, holder, SERVICE if hosted else "")
        except ContainmentError as error:
            note = f"pid {process.pid} is followed by session and ancestry only: {error.message}"
            log.warning("%s", note)
            return Tracking(ContainmentKind.PROCESS_GROUP, note)
        self._leaves[self.tree.path_of(holder)] = holder
        return Tracking(ContainmentKind.CGROUP)

    def put_back(self, item: Attachment) -> None:
        """Move a process that leaves its holder to where it was before."""
        if self.tree is not None and item.origin_cgroup and self.processes.alive(item.process):
            self.tree.put_back(item.process.pid, item.origin_cgroup)

    def attributor(self, seen: Mapping[int, ProcessFacts] = MappingProxyType({})) -> Attributor:
        """For one scan: ask it about pids, then hand it to `learn`. `seen`: what is known of processes already."""
        held = self.holders()
        return Attributor(
            lookup=self.processes.facts_of,
            roster=self._roster_of(held),
            proven={key: kept for key, known in self._proven.items() if (kept := _kept(known, held))},
            seen=dict(seen),
        )

    def _roster_of(self, held: frozenset[Holder]) -> Roster:
        """Made anew only when something of it has changed: every poll asks for it."""
        attachments, there = self.attachments(), tuple(self._there())
        known = self._known
        if known is None or known[:3] != (held, there, self._leaves) or known[3] is not attachments:
            cgroups = {path: holder for path, holder in self._leaves.items() if holder in held}
            cgroups |= {item.path: item.holder for item in there if item.holder in held}
            roster = Roster(cgroups, (item for item in attachments if item.holder in held))
            known = self._known = (held, there, dict(self._leaves), attachments, roster)
        return known[4]

    def learn(self, scan: Attributor) -> None:
        """Remember members a scan has proven, as long as they live: they prove their relatives later."""
        alive = {key: holders for key, holders in self._proven.items() if self.processes.alive(key)}
        self._proven = alive | scan.found

    def belongs(self, pid: int, holder: Holder) -> bool:
        """Whether a process is the holder's, looked at afresh."""
        found = self.belonging(pid)
        return found is not None and holder in found.holders

    def belonging(self, pid: int) -> Belonging | None:
        """Whose a process is, looked at afresh; None: foreign, or gone."""
        return self.attributor().belonging(pid)

    def holder_like(self, pid: int, holder: Holder) -> Holder:
        """The process's own holder of the same lease and member, which may be of another epoch while a lease
        changes its shape; `holder` itself where it has none.
        """
        found = self.belonging(pid)
        for own in found.holders if found is not None else ():
            if (own.lease_id, own.member) == (holder.lease_id, holder.member):
                return own
        return holder

    def members(self, holder: Holder) -> list[ProcessKey]:
        """The holder's live processes.

        Costs a look at every process of the machine, unless all that was attached to the holder was put into
        its cgroup.
        """
        found = set(self._in_cgroup(holder))
        attached = [item for item in self.attachments() if item.holder == holder]
        found |= {item.process.pid for item in attached if self.processes.alive(item.process)}
        if not all(item.contained for item in attached):
            scan = self.attributor()
            for pid in self.processes.pids():
                if pid in found:
                    continue
                belonging = scan.belonging(pid)
                if belonging is not None and holder in belonging.holders:
                    found.add(pid)
            self.learn(scan)
        keys = (self.processes.key_of(pid) for pid in sorted(found))
        return [key for key in keys if key is not None and self.processes.alive(key)]

    def service_of(self, holder: Holder) -> list[ProcessKey]:
        """What serves the holder and is alive: what the agent started for that, before it was started again itself as
        well, and what that has started. Others of the holder's processes attached themselves, and are not meant.
        """
        roots = {item.process.pid: item.process for item in self.attachments() if item.holder == holder and item.hosted}
        found = set(self.tree.members(holder, SERVICE)) if self.tree is not None else set()
        if not roots and not found:
            return []
        return [key for key in self.members(holder) if key.pid in found or self._comes_from(key, roots)]

    def _comes_from(self, process: ProcessKey, roots: Mapping[int, ProcessKey]) -> bool:
        """Whether a process is one of these, below one, or in its session: a session outlives its first process, whose
        pid goes to nobody else meanwhile.
        """
        facts = self.processes.facts_of(process.pid)
        if facts is None or facts.key != process:
            return False
        for pid in {process.pid, facts.session_id, *self.processes.ancestors(process.pid)} & roots.keys():
            now = self.processes.key_of(pid)
            if now == roots[pid] or (now is None and pid == facts.session_id):
                return True
        return False

    def freeze(self, holder: Holder, *, frozen: bool) -> None:
        """Keep the holder's processes from forking while they are being ended, where there is a cgroup."""
        if self.tree is not None:
            self.tree.freeze(holder, frozen=frozen)
            for item in self._there(holder):
                self.tree.freeze_path(item.path, frozen=frozen)

    def release(self, holder: Holder) -> None:
        """The holder has no processes any more: drop its cgroup."""
        if self.tree is not None:
            self.tree.remove(holder)
            self._leaves.pop(self.tree.path_of(holder), None)

    def sweep(self) -> list[Holder]:
        """Drop empty cgroups of holders without a reservation; answers those that still have processes."""
        left = []
        held = self.holders()
        for holder in [holder for holder in self._leaves.values() if holder not in held]:
            if self._in_cgroup(holder):
                left.append(holder)
            else:
                self.release(holder)
        return left

    def close(self) -> None:
        """Remove the node's own cgroup when nothing is in it."""
        if self.tree is not None:
            self.tree.close()

    def cgroup_of(self, holder: Holder) -> str | None:
        """The holder's leaf cgroup, for tiers that limit by cgroup."""
        return None if self.tree is None else self.tree.path_of(holder)

    def find_cgroup(self, cgroup: str, holder: Holder) -> AttachedCgroup:
        """A cgroup that somebody else made, named from the root of the hierarchy, to be attached to a holder.

        Raises `ContainmentError` where there is none, or it can't be given to a holder.
        """
        if self.tree is None:
            raise ContainmentError(f"cgroups can't be attached here: {self.why_no_tree}")
        path, inode = self.tree.find(cgroup)
        item = AttachedCgroup(holder, path, inode)
        base = self.tree.base
        if path == base or base.startswith(f"{path}/") or path.startswith(f"{base}/"):
            raise ContainmentError(f"{cgroup} is the agent's own")
        for other in self._there():
            if other.path == path and other.holder != holder and other.holder in self.holders():
                raise ContainmentError(f"{cgroup} belongs to lease {other.holder.lease_id}")
            if other.holder == holder and other != item:
                mine = self.tree.full_name(other.path)
                raise ContainmentError(
                    f"member {holder.member} of lease {holder.lease_id} has another cgroup: {mine}",
                    hint="a member has one at a time: end what runs there, and remove it, first",
                )
        return item

    def cgroups_attached(self, holder: Holder) -> list[str]:
        """Cgroups of others that were attached to a holder and are there, as /proc/pid/cgroup names them."""
        return [item.path for item in self._there(holder)]

    def full_names(self, holder: Holder) -> list[str]:
        """The same, named from the root of the hierarchy."""
        return [] if self.tree is None else list(map(self.tree.full_name, self.cgroups_attached(holder)))

    def pids_in(self, item: AttachedCgroup) -> list[int]:
        """Processes in a cgroup that somebody else made."""
        return [] if self.tree is None else self.tree.pids_in(item.path)

    def _there(self, holder: Holder | None = None) -> list[AttachedCgroup]:
        """Attached cgroups that are still those that were attached."""
        tree = self.tree
        if tree is None:
            return []
        mine = (item for item in self.attached_cgroups() if holder is None or item.holder == holder)
        return [item for item in mine if tree.inode_of(item.path) == item.inode]

    def _in_cgroup(self, holder: Holder) -> list[int]:
        if self.tree is None:
            return []
        found = self.tree.members(holder)
        for item in self._there(holder):
            found += self.tree.pids_in(item.path)
        return found


def _kept(known: tuple[Holder, ...], held: frozenset[Holder]) -> tuple[Holder, ...]:
    return tuple(holder for holder in known if holder in held)

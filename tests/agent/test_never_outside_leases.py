"""A small machine whose pids are reused all the time: whoever is signalled descends from what was attached.

No cgroups here: this is the weaker way of following processes, by attachment, ancestry and session. The model
knows of every process which attached process it really came from; the agent only sees what /proc would show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aliquot.agent.core.accounting import ProcessUse, account
from aliquot.agent.core.attribution import Attachment, Attributor, ProcessFacts, Roster
from aliquot.agent.core.enforcement import Act, Rules, Watch, judge
from aliquot.agent.core.model import Holder, ProcessKey, Reservation, SliceSpec
from aliquot.agent.core.samples import MemorySample
from aliquot.common.tiers import Tier

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

LEASES = ("l-1", "l-2")
PIDS = range(2, 6)
UUID = "GPU-a"


@dataclass
class Process:
    """One process, and what only the model knows of it."""

    key: ProcessKey
    parent: int
    session: int
    group: int
    leases: set[str] = field(default_factory=set)
    """The leases it was attached to, or born into."""
    memory: int = 0


class Machine(RuleBasedStateMachine):
    """Processes come, go, fork, lead sessions and attach; the agent polls in between."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.table: dict[int, Process] = {}
        self.attachments: list[Attachment] = []
        self.proven: dict[ProcessKey, tuple[Holder, ...]] = {}
        self.watch = Watch()
        self.records = [Reservation(SliceSpec(f"{lease}.1.0", lease, 1, UUID, 250, 10, grace_ms=3)) for lease in LEASES]

    @initialize()
    def boot(self) -> None:
        self.spawn(2, 1)

    def spawn(self, pid: int, parent: int) -> None:
        self.now += 1
        above = self.table.get(parent)
        self.table[pid] = Process(
            key=ProcessKey(pid, self.now),
            parent=parent if above is not None else 1,
            session=above.session if above is not None else pid,
            group=above.group if above is not None else pid,
            leases=set(above.leases) if above is not None else set(),
        )

    def free_pid(self, pid: int) -> bool:
        # The kernel gives no number away that a session or a process group still has.
        used = {number for process in self.table.values() for number in (process.session, process.group)}
        return pid not in self.table and pid not in used

    @rule(pid=st.sampled_from(PIDS), parent=st.sampled_from([1, *PIDS]))
    def fork(self, pid: int, parent: int) -> None:
        if self.free_pid(pid):
            self.spawn(pid, parent)

    @rule(pid=st.sampled_from(PIDS))
    def end(self, pid: int) -> None:
        self.table.pop(pid, None)
        for process in self.table.values():
            if process.parent == pid:
                process.parent = 1

    @rule(pid=st.sampled_from(PIDS))
    def start_over(self, pid: int) -> None:
        """A login in miniature: a fresh process that leads its own session."""
        if self.free_pid(pid):
            self.spawn(pid, 1)

    @rule(pid=st.sampled_from(PIDS), whole_session=st.booleans())
    def lead(self, pid: int, whole_session: bool) -> None:
        process = self.table.get(pid)
        others = [other for other in self.table.values() if other is not process]
        if process is not None and not any(pid in (other.group, other.session) for other in others):
            process.group = pid
            process.session = pid if whole_session else process.session

    @rule(pid=st.sampled_from(PIDS), lease=st.sampled_from(LEASES))
    def attach(self, pid: int, lease: str) -> None:
        process = self.table.get(pid)
        if process is None:
            return
        self.now += 1
        others = [other for other in self.table.values() if other is not process]
        process.leases.add(lease)
        self.attachments.append(
            Attachment(
                holder=Holder(lease, 1, 0),
                process=process.key,
                order=len(self.attachments),
                since_ticks=self.now,
                owns_session=process.session == pid and not any(other.session == pid for other in others),
                owns_group=process.group == pid and not any(other.group == pid for other in others),
            )
        )

    @rule(pid=st.sampled_from(PIDS), memory=st.integers(0, 30))
    def allocate(self, pid: int, memory: int) -> None:
        if pid in self.table:
            self.table[pid].memory = memory

    def facts(self, pid: int) -> ProcessFacts | None:
        process = self.table.get(pid)
        if process is None:
            return None
        return ProcessFacts(process.key, process.parent, process.group, process.session)

    @rule()
    def poll(self) -> None:
        self.now += 1
        scan = Attributor(self.facts, Roster({}, self.attachments), self.proven)
        uses = []
        for pid, process in self.table.items():
            found = scan.belonging(pid)
            holders = found.holders if found is not None else ()
            claimed = {holder.lease_id for holder in holders}
            assert claimed <= process.leases, "attributed to a lease it never had to do with"
            uses.append(ProcessUse(pid, process.key, process.memory, holders))
        alive = {process.key for process in self.table.values()}
        self.proven = {key: kept for key, kept in {**self.proven, **scan.found}.items() if key in alive}
        usage = account(UUID, MemorySample(1000, 0, 500), uses, self.records)
        tiers = {record.slice_id: Tier.WATCHDOG for record in self.records}
        self.watch, decisions = judge(self.watch, usage, tiers, Rules(grace_max_ms=3), self.now)
        for decision in decisions:
            if decision.act in (Act.TERMINATE, Act.KILL):
                assert decision.process is not None
                target = self.table[decision.process.pid]
                assert target.key == decision.process
                assert decision.holder.lease_id in target.leases
                together = sum(each.memory for each in self.table.values() if decision.holder.lease_id in each.leases)
                assert together > 10, "nobody is ended while all of the lease together is within its limit"


Machine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestMachine = Machine.TestCase

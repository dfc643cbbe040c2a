"""A simulated machine with GPUs: devices that fail in the ways they do, a process table, cgroups, and signals.

What is true here is the ground truth that the auditor judges by. What the agent's production code sees of it: `seams`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.core.samples import (
    DeviceInfo,
    RecoveryAction,
)
from tests.simulation.sim.loop import US_PER_MS, US_PER_S, Process, SimLoop
from tests.simulation.sim.mig import SimCard

T = TypeVar("T")
MIB = 1 << 20
CGROUP_BASE = "/aliquot"
US_PER_TICK = 10_000


@dataclass(eq=False, slots=True)
class SimProc:
    """One program of somebody."""

    machine: SimMachine
    pid: int
    start_ticks: int
    parent: int
    group: int
    session: int
    uid: int
    cgroup: str = "/user"
    alive: bool = True
    memory: dict[str, int] = field(default_factory=dict)
    """Device UUID -> bytes."""
    lease_id: str = ""
    """Whose it truly is; empty: nobody's."""
    member: int = 0
    stubborn: bool = False
    """It ignores SIGTERM."""
    child: bool = False
    busy_percent: int | None = None
    """Of a device's time, on each that it holds memory of; None: an even share of most of it."""

    @property
    def key(self) -> ProcessKey:
        """Who it is, for ever."""
        return ProcessKey(self.pid, self.start_ticks)


class ProcessTable:
    """All processes of all machines: pids are unique over all of them, so that a look-up needs no machine."""

    def __init__(self) -> None:
        self.by_pid: dict[int, SimProc] = {}
        self.next_pid = 1000
        self.started = 0
        self.last_ticks: dict[int, int] = {}
        """When the latest process of this pid started."""


@dataclass(eq=False, slots=True)
class SimDevice:
    """One GPU, and what is wrong with it."""

    info: DeviceInfo
    lost: bool = False
    hung: bool = False
    blind: bool = False
    """The driver does not say which process holds how much."""
    unlisted: bool = False
    """The list of processes can't be read."""
    recovery: RecoveryAction | None = RecoveryAction.NONE
    """None: the driver has no such field."""
    remap_failed: bool = False
    hot: int = 40
    power_mw: int | None = None
    """None: by how busy it is."""
    unmeasured: bool = False
    """The driver has no samples of processes."""
    other_bytes: int = 0
    """Held by what the driver does not list."""
    sample: dict[str, Any] = field(default_factory=dict)
    """What else it says of itself, by the names of `HealthSample`."""

    @property
    def sick(self) -> bool:
        """Whether a test would find something wrong with it."""
        asks = self.recovery is not None and self.recovery.concerns_device
        return self.lost or self.hung or self.remap_failed or asks

    def well_again(self) -> None:
        """As after a reset."""
        self.lost = self.hung = False
        if self.recovery is not None:
            self.recovery = RecoveryAction.NONE
        self.sample.pop("remap_pending", None)


class SimMachine:
    """See the module's docstring."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        table: ProcessTable,
        node_id: str,
        devices: list[DeviceInfo],
        *,
        cgroups: bool,
    ) -> None:
        self.loop = loop
        self.random = random
        self.table = table
        self.node_id = node_id
        self.host = node_id
        self.devices = {info.uuid: SimDevice(info) for info in devices}
        self.cards: dict[str, SimCard] = {}
        """Those in MIG mode, whose parts are among the devices."""
        self.has_cgroups = cgroups
        self.boots = 1
        self.procs: dict[int, SimProc] = {}
        self.leaves: dict[str, Holder] = {}
        self.frozen_leaves: set[str] = set()
        self.denies = cgroups and random.random() < 0.4
        """Its driver can hold limits by cgroup."""
        self.denying: dict[str, tuple[str, str, int]] = {}
        """Slice id -> (device, cgroup, bytes), where the driver denies at the allocation."""
        self.unplugged: set[str] = set()
        self.drawn_mj: dict[str, int] = {}
        """By card, since the simulation began."""
        self._counted: dict[str, tuple[int, int]] = {}
        """By card: when its counter was read last, and what it had drawn when the counter began."""
        self.events = 0
        self.why = ""
        """What the agent last gave as its reason for a signal."""
        self.meant: ProcessKey | None = None
        """And the process that it is for."""
        self.swaps = 0
        """So many processes will end just before the agent takes hold of them, and others have their numbers then."""
        self.on_signal: Callable[[SimProc, int], None] = lambda proc, what: None
        self.on_memory: Callable[[SimProc, str], None] = lambda proc, uuid: None
        self.on_exit: Callable[[SimProc], None] = lambda proc: None
        self.os = Process(f"{node_id}: its programs")
        self.os.host = self

    @property
    def boot_id(self) -> str:
        """Changes when the machine starts again."""
        return f"boot-{self.host}-{self.boots}"

    # -- processes

    def start(self, *, lease_id: str = "", parent: SimProc | None = None, pid: int = 0, leader: bool = True) -> SimProc:
        """A program starts. `pid`: a number that the kernel gives out again."""
        table = self.table
        if not pid:
            table.next_pid += 1
            pid = table.next_pid
        table.started += 1
        ticks = max(self.loop.now_us // US_PER_TICK, table.last_ticks.get(pid, -1) + 1)
        table.last_ticks[pid] = ticks
        proc = SimProc(
            self,
            pid,
            ticks,
            parent.pid if parent is not None else 1,
            pid if leader or parent is None else parent.group,
            pid if leader or parent is None else parent.session,
            uid=1000,
            cgroup=parent.cgroup if parent is not None else "/user",
            lease_id=lease_id or (parent.lease_id if parent is not None else ""),
            member=parent.member if parent is not None else 0,
            child=parent is not None,
        )
        self.procs[pid] = table.by_pid[pid] = proc
        self.events += 1
        return proc

    def exit(self, proc: SimProc) -> None:
        """A program ends; the driver takes its memory back."""
        if proc.alive:
            proc.alive = False
            self.events += 1
            proc.memory.clear()
            self.procs.pop(proc.pid, None)
            if self.table.by_pid.get(proc.pid) is proc:
                del self.table.by_pid[proc.pid]
            for child in self.procs.values():
                if child.parent == proc.pid:
                    child.parent = 1
            self.on_exit(proc)

    def free_number(self, pid: int) -> bool:
        """Whether the kernel may give this number to another process: no session and no group has it."""
        return pid not in self.procs and not any(pid in (p.group, p.session) for p in self.procs.values())

    def swap(self, proc: SimProc) -> SimProc | None:
        """A program ends, and another one of its lease gets its number; None: it is still in use otherwise."""
        self.exit(proc)
        if not self.free_number(proc.pid):
            return None
        other = self.start(pid=proc.pid)
        other.lease_id, other.member, other.cgroup = proc.lease_id, proc.member, proc.cgroup
        self.loop.call_in(self.os, 30 * US_PER_S, self.exit, other)
        return other

    def allocate(self, proc: SimProc, uuid: str, total_bytes: int) -> bool:
        """A program wants to hold so much of a device in all. False: denied."""
        device = self.devices[uuid]
        if not proc.alive or device.lost or uuid in self.unplugged:
            return False
        self.events += 1
        used = sum(p.memory.get(uuid, 0) for p in self.procs.values()) - proc.memory.get(uuid, 0) + device.other_bytes
        if used + total_bytes > device.info.leasable_bytes:
            return False
        for of_device, cgroup, limit_bytes in self.denying.values():
            if of_device == uuid and cgroup == proc.cgroup:
                together = sum(
                    p.memory.get(uuid, 0) for p in self.procs.values() if p is not proc and p.cgroup == cgroup
                )
                if together + total_bytes > limit_bytes:
                    return False
        if total_bytes:
            proc.memory[uuid] = total_bytes
        else:
            proc.memory.pop(uuid, None)
        self.on_memory(proc, uuid)
        return True

    def signal(self, pid: int, what: int) -> None:
        """The kernel delivers a signal. Raises ProcessLookupError."""
        proc = self.procs.get(pid)
        if proc is None or not proc.alive:
            raise ProcessLookupError(pid)
        self.events += 1
        self.on_signal(proc, what)
        if what == signal.SIGKILL:
            self.loop.call_in(self.os, 5 * US_PER_MS, self.exit, proc)
        elif what == signal.SIGTERM and not proc.stubborn:
            self.loop.call_in(self.os, int(self.random.random() ** 2 * 3 * US_PER_S), self.exit, proc)

    def lose_power(self) -> None:
        """Everything that ran is gone; the clock of processes starts anew."""
        for proc in list(self.procs.values()):
            self.exit(proc)
        self.leaves.clear()
        self.denying.clear()
        for card in self.cards.values():
            card.clear()
        self._counted = {card: (self.loop.now_us, drawn_mj) for card, drawn_mj in self.drawn_mj.items()}
        self.boots += 1

    def read_energy(self, card: str, power_mw: int) -> int:
        """The card's counter, in millijoules: power as it is now, over the time since somebody last asked."""
        since_us, began_mj = self._counted.get(card, (self.loop.now_us, 0))
        drawn_mj = self.drawn_mj.get(card, 0) + (self.loop.now_us - since_us) * power_mw // 1_000_000
        self.drawn_mj[card], self._counted[card] = drawn_mj, (self.loop.now_us, began_mj)
        return drawn_mj - began_mj

    def listed(self, uuid: str) -> list[SimProc]:
        """Who holds memory of a device."""
        return [proc for proc in self.procs.values() if uuid in proc.memory]

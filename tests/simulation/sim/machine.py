"""A simulated machine with GPUs: devices that fail in the ways they do, a process table, cgroups, and signals.

The agent's production code sees it through `SimBackend`, `SimGuard` and `SimTree`, and through the functions of
`aliquot.agent.processes.proc` (see `agent_world`). What is true here is the ground truth that the auditor judges by.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from aliquot.agent.core.attribution import ProcessFacts
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
    ProcessSample,
    RecoveryAction,
)
from aliquot.agent.devices.base import DeviceError, DeviceLost, Discovery
from aliquot.agent.devices.guard import DeviceHung
from aliquot.agent.enforce.base import Cgroups, Enforcer, Limited
from aliquot.agent.processes.cgroups import ContainmentError
from aliquot.common.tiers import Tier
from tests.simulation.sim import mig
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
        self.boots += 1

    def listed(self, uuid: str) -> list[SimProc]:
        """Who holds memory of a device."""
        return [proc for proc in self.procs.values() if uuid in proc.memory]


class SimTree:
    """The cgroups of one machine. It stands in for `aliquot.agent.processes.cgroups.CgroupTree`."""

    def __init__(self, machine: SimMachine) -> None:
        self.base = f"{CGROUP_BASE}/{machine.node_id}"
        self._machine = machine

    def path_of(self, holder: Holder) -> str:
        """Where a holder's processes are."""
        return f"{self.base}/{holder.lease_id}/{holder.lease_epoch}.{holder.member}"

    def add(self, pid: int, holder: Holder, part: str = "") -> None:
        """Move a process. Raises ContainmentError."""
        proc = self._machine.procs.get(pid)
        if proc is None or not proc.alive:
            raise ContainmentError(f"there is no process {pid}")
        proc.cgroup = path = self.path_of(holder)
        self._machine.leaves[path] = holder

    def put_back(self, pid: int, origin: str) -> None:
        """Move it out again."""
        proc = self._machine.procs.get(pid)
        if proc is not None:
            proc.cgroup = origin or "/user"

    def members(self, holder: Holder) -> list[int]:
        """Who is there."""
        path = self.path_of(holder)
        return [proc.pid for proc in self._machine.procs.values() if proc.cgroup == path]

    def freeze(self, holder: Holder, *, frozen: bool) -> None:
        """Nothing forks while it is being ended: here nothing does within one step anyway."""

    def remove(self, holder: Holder) -> None:
        """Drop an empty leaf."""
        if not self.members(holder):
            self._machine.leaves.pop(self.path_of(holder), None)

    def holders(self) -> Iterator[tuple[str, Holder]]:
        """Leaves from before a restart."""
        yield from list(self._machine.leaves.items())


class SimDriverTier:
    """A driver that denies allocations beyond a cgroup's limit. It implements `Enforcer`."""

    tier = Tier.DRIVER

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine

    def available(self, limited: Limited) -> str:
        """Where the driver can, and the slice's processes are in a cgroup."""
        return "" if self._machine.denies and limited.cgroup is not None else "this driver has no limits by cgroup"

    def apply(self, limited: Limited) -> None:
        """Set it."""
        assert limited.cgroup is not None
        spec = limited.spec
        self._machine.denying[spec.slice_id] = (spec.device_uuid, limited.cgroup, spec.memory_bytes)

    def read_back(self, limited: Limited) -> bool:
        """As the driver has it."""
        held = self._machine.denying.get(limited.spec.slice_id)
        return held is not None and held[2] == limited.spec.memory_bytes

    def clear(self, limited: Limited) -> None:
        """Take it away."""
        self._machine.denying.pop(limited.spec.slice_id, None)

    def environment(self, limited: Limited) -> dict[str, str]:
        """Nothing to add."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""


class SimBackend:
    """The driver's answers. It implements `DeviceBackend`."""

    name = "simulated"
    calls = 0
    geometry = mig

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine

    def open(self) -> DriverInfo:
        """Versions."""
        return DriverInfo("580.65.06", "13.580", (13, 0))

    def close(self) -> None:
        """Nothing to do."""

    def discover(self) -> Discovery:
        """What is plugged in. A lost card can't be read."""
        machine = self._machine
        there = [d for uuid, d in machine.devices.items() if uuid not in machine.unplugged]
        problems = tuple(f"{d.info.uuid} is lost" for d in there if d.lost)
        cards = tuple(card.as_read() for card in machine.cards.values())
        return Discovery(tuple(d.info for d in there if not d.lost), problems, cards)

    def visibility(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Programs are simulated too."""
        return {}

    def unusable(self, device: DeviceInfo) -> str:
        """They find their driver."""
        return ""

    def enforcers(self, cgroups: Cgroups) -> list[tuple[str, Enforcer]]:
        """The world's tiers are simulated."""
        return []

    def probe(self, device: DeviceInfo) -> tuple[str, ...]:
        """Nobody proves anything here."""
        return ()

    def _device(self, uuid: str) -> SimDevice:
        device = self._machine.devices.get(uuid)
        self._machine.events += 1
        if device is None or device.lost or uuid in self._machine.unplugged:
            raise DeviceLost(f"{uuid} is lost")
        return device

    def memory(self, uuid: str) -> MemorySample:
        """Of the whole device."""
        device = self._device(uuid)
        used = sum(proc.memory.get(uuid, 0) for proc in self._machine.procs.values()) + device.other_bytes
        return MemorySample(device.info.memory_total_bytes, device.info.memory_reserved_bytes, used)

    def processes(self, uuid: str) -> ProcessList:
        """Of the programs that hold memory."""
        device = self._device(uuid)
        if device.unlisted:
            raise DeviceError("the list of processes can't be read")
        return ProcessList(
            tuple(
                ProcessSample(proc.pid, None if device.blind else proc.memory[uuid])
                for proc in self._machine.listed(uuid)
            )
        )

    def load(self, uuid: str) -> LoadSample:
        """Busy while somebody holds memory."""
        device = self._device(uuid)
        listed = self._machine.listed(uuid)
        busy = sum(self._busy_percent(proc, len(listed)) for proc in listed)
        power_mw = 60_000 + busy * 2_000 if device.power_mw is None else device.power_mw
        return LoadSample(busy, busy // 2, device.hot, power_mw, 1_400, power_limit_mw=300_000)

    def process_load(self, uuid: str) -> dict[int, int] | None:
        """Even shares of the device's time, but of programs that are told to do otherwise."""
        if self._device(uuid).unmeasured:
            return None
        listed = [] if self._device(uuid).blind else self._machine.listed(uuid)
        return {proc.pid: self._busy_percent(proc, len(listed)) for proc in listed}

    def process_peaks(self, uuid: str) -> dict[int, int] | None:
        """The same: what a simulated program does is the same all the time."""
        return self.process_load(uuid)

    def _busy_percent(self, proc: SimProc, of: int) -> int:
        return 90 // of if proc.busy_percent is None else proc.busy_percent

    def health(self, uuid: str) -> HealthSample:
        """What the device says of itself."""
        device = self._device(uuid)
        said = {"remap_pending": False, **device.sample}
        return HealthSample(recovery_action=device.recovery, remap_failed=device.remap_failed, **said)

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        """XIDs are handed to the poller directly."""
        return ()


class SimGuard:
    """Calls that may hang. It stands in for `aliquot.agent.devices.guard.DeviceGuard`, whose threads have own tests."""

    def __init__(self, machine: SimMachine, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._machine = machine

    @property
    def stuck(self) -> frozenset[str]:
        """Devices with a call that has not come back."""
        return frozenset(uuid for uuid, device in self._machine.devices.items() if device.hung)

    async def run(self, device: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """See `DeviceGuard.run`."""
        if device in self.stuck:
            await asyncio.sleep(timeout_s or self.timeout_s)
            if device in self.stuck:
                raise DeviceHung(f"a call to the driver has not come back within {self.timeout_s:g} s")
        elif self._machine.random.random() < 0.1:
            await asyncio.sleep(self._machine.random.random() * 0.05)
        return call()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Any]:
        """Calls take no time here: there are none under way."""
        yield self.run

    def forget(self, device: str) -> None:
        """There are no threads to let go."""

    def close(self) -> None:
        """No threads."""


class SimProcesses:
    """What /proc says. Its methods replace the functions of `aliquot.agent.processes.proc`."""

    def __init__(self, loop: SimLoop, table: ProcessTable, current: Callable[[], Process]) -> None:
        self._loop = loop
        self._table = table
        self._current = current

    def key_of(self, pid: int) -> ProcessKey | None:
        """The process that has this pid now."""
        proc = self._table.by_pid.get(pid)
        return None if proc is None else proc.key

    def alive(self, process: ProcessKey) -> bool:
        """Whether this very process runs."""
        proc = self._table.by_pid.get(process.pid)
        return proc is not None and proc.start_ticks == process.start_ticks

    def facts_of(self, pid: int) -> ProcessFacts | None:
        """What attribution needs."""
        proc = self._table.by_pid.get(pid)
        if proc is None:
            return None
        return ProcessFacts(proc.key, proc.parent, proc.group, proc.session, proc.cgroup)

    def cgroup_of(self, pid: int) -> str | None:
        """Its cgroup."""
        proc = self._table.by_pid.get(pid)
        return None if proc is None else proc.cgroup

    def uids_of(self, pid: int) -> frozenset[int] | None:
        """Its user."""
        proc = self._table.by_pid.get(pid)
        return None if proc is None else frozenset({proc.uid})

    def name_of(self, pid: int) -> str:
        """For people."""
        return "job" if pid in self._table.by_pid else ""

    def pids(self) -> Iterator[int]:
        """Of the machine that asks."""
        machine: Any = self._current().host
        return iter(list(machine.procs))

    def now_ticks(self) -> int:
        """The present, as start times count it."""
        return self._loop.now_us // US_PER_TICK

    def alone_in(self, process: ProcessKey) -> tuple[bool, bool]:
        """Whether it leads its session, and its group, and is the only one there."""
        mine = self._table.by_pid.get(process.pid)
        if mine is None or mine.start_ticks != process.start_ticks:
            return False, False
        others = [proc for proc in mine.machine.procs.values() if proc is not mine]
        return (
            mine.session == mine.pid and all(proc.session != mine.pid for proc in others),
            mine.group == mine.pid and all(proc.group != mine.pid for proc in others),
        )

    def ancestors(self, pid: int) -> frozenset[int]:
        """Above the agent there is only init."""
        return frozenset({1})

"""What the agent's production code sees of a simulated machine, in place of its own modules that ask a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
)
from aliquot.agent.devices.base import DeviceError, DeviceLost, Discovery
from aliquot.agent.devices.guard import DeviceHung
from aliquot.agent.enforce.base import Cgroups, Enforcer, Limited
from aliquot.agent.processes.cgroups import ContainmentError
from aliquot.common.tiers import Tier
from tests.simulation.sim import mig
from tests.simulation.sim.loop import Process, SimLoop
from tests.simulation.sim.machine import CGROUP_BASE, US_PER_TICK, ProcessTable, SimDevice, SimMachine, SimProc

T = TypeVar("T")


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
        energy_mj = self._machine.read_energy(device.info.physical_uuid, power_mw)
        return LoadSample(busy, busy // 2, device.hot, power_mw, energy_mj, 1_400, power_limit_mw=300_000)

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

    def deaf(self) -> str:
        """Nothing is missed."""
        return ""


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

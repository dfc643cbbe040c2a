"""Everything that an agent takes from its machine: clocks, processes, signals, files, threads for the driver,
connections. The defaults are the real ones; a simulation gives its own, and takes what the real ones take.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol, TypeVar

from aliquot.agent import machine
from aliquot.agent.connection import Call, Coordinators, open_session
from aliquot.agent.core.samples import DeviceEvent
from aliquot.agent.devices.base import DeviceBackend
from aliquot.agent.devices.events import EventWatcher
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.devices.kmsg import KernelLog, Mark
from aliquot.agent.disk import durable, identity
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.membership import Membership, read_membership, write_membership
from aliquot.agent.disk.private import require_private_state
from aliquot.agent.enforce.assembly import assemble
from aliquot.agent.enforce.base import Enforcer
from aliquot.agent.enforce.prerequisites import try_to_load
from aliquot.agent.hosting.base import Host
from aliquot.agent.hosting.processes import ProcessHost
from aliquot.agent.local.server import LocalServer
from aliquot.agent.local.service import LocalService
from aliquot.agent.metrics.endpoint import Metrics
from aliquot.agent.processes import proc as processes
from aliquot.agent.processes.apart import Apart, apart
from aliquot.agent.processes.cgroups import CgroupTree
from aliquot.agent.processes.commands import Ended, run_command
from aliquot.agent.processes.proc import Processes
from aliquot.agent.processes.signals import Kernel, PidFds, Signaller
from aliquot.common.backoff import Uniform
from aliquot.common.clock import Clock, SystemClock
from aliquot.common.runtime import VERSION

T = TypeVar("T")


class Machine(Protocol):
    """What the machine has beside devices: see the module `machine`."""

    def host_name(self) -> str:
        """Its name for people."""

    def in_pid_namespace(self) -> bool:
        """Whether other pids are seen here than the driver tells."""

    def cpu_milli(self) -> int:
        """Processors, in thousandths."""

    def memory_bytes(self) -> int | None:
        """None where that is not known."""


TakeEvent = Callable[[DeviceEvent, int], Coroutine[Any, Any, None]]


class Events(Protocol):
    """Hands over what devices report of their own accord: see `EventWatcher`."""

    async def run(self) -> None:
        """Until cancelled."""

    async def gone(self) -> bool:
        """Whether nothing of it is in the driver any more."""

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Within it nothing of it is in the driver. Raises `DeviceError`."""


class Log(Protocol):
    """Hands over what the kernel's log says of devices: see `KernelLog`."""

    async def run(self) -> None:
        """Until cancelled."""


class Server(Protocol):
    """Where programs of this node ask to be attached: see `LocalServer`."""

    async def start(self) -> None:
        """Listen. Raises `AliquotError`."""

    async def close(self) -> None:
        """Stop listening."""


@dataclass(frozen=True)
class World:
    """See the module's docstring. One for each agent."""

    clock: Clock = field(default_factory=SystemClock)
    wall_ns: Callable[[], int] = time.time_ns
    """The machine's clock, as it may be stepped: `clock` is not."""
    monotonic_s: Callable[[], float] = time.monotonic
    random: Uniform = field(default_factory=SystemRandom)
    poll_random: Uniform = field(default_factory=SystemRandom)
    """When devices are polled: apart, so that nothing else shows what it draws."""
    machine: Machine = machine
    processes: Processes = processes
    kernel: Kernel = field(default_factory=PidFds)
    signaller: type[Signaller] = Signaller
    records: durable.Records = durable
    boot_id: Callable[[], str] = identity.boot_id
    version: str = VERSION
    open_identity: Callable[[Path, str, Iterable[str]], identity.Identity] = identity.Identity.open
    open_checkpoint: Callable[[Path, str], Checkpoint] = Checkpoint.open
    open_cgroups: Callable[[str, str], CgroupTree] = CgroupTree.open
    read_member: Callable[[Path], Membership | None] = read_membership
    """What is kept below the state directory. Raises `SecurityError`."""
    write_member: Callable[[Path, Membership], None] = write_membership
    """Durable when it returns. Raises `OSError`."""
    check_state: Callable[[Path], None] = require_private_state
    """Raises `SecurityError` where others than the agent could change what it keeps."""
    entropy: Callable[[int], bytes] = secrets.token_bytes
    """Random bytes that nobody can guess."""
    open_session: Callable[[str, Coordinators], AbstractAsyncContextManager[Call]] = open_session
    make_guard: Callable[[float], DeviceGuard] = DeviceGuard
    make_tiers: Callable[..., list[Enforcer]] = assemble
    try_cuda: Callable[[], str] = try_to_load
    make_events: Callable[[DeviceBackend, TakeEvent, Callable[[str], None]], Events] = EventWatcher
    make_kernel_log: Callable[[Path, Callable[[str], str], TakeEvent, Callable[[str], None], Mark], Log] = KernelLog
    apart: Apart = apart
    run_command: Callable[[Sequence[str], float], Awaitable[Ended]] = run_command
    make_host: Callable[..., Host] = ProcessHost
    make_server: Callable[[LocalService, Path], Server] = LocalServer
    make_metrics: Callable[[], Metrics] = Metrics

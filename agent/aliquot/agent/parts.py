"""What the parts of an agent work with, handed as one to whatever needs some of it: whole when constructed.

Ground      what an agent stands on
Following   whose process is it
Holding     what a lease may have, and what happens to whoever takes more
"""

from __future__ import annotations

import logging

import msgspec

from aliquot.agent.core.enforcement import Rules
from aliquot.agent.devices.base import DeviceBackend
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from aliquot.agent.duties import CGROUPS, MPS, SIGNALLING
from aliquot.agent.enforce.base import PROOFS, Cgroups, Enforcer
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.enforce.prerequisites import CudaDriver
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.processes.attachments import Attachments
from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.agent.processes.containment import Containment
from aliquot.agent.settings import ContainmentMode, Settings
from aliquot.agent.state import NodeState
from aliquot.agent.wakeup import Wakeup
from aliquot.agent.watchdog import Watchdog
from aliquot.agent.world import World
from aliquot.common.tiers import Tier

log = logging.getLogger(__name__)

MPS_MISSING = "the tier `mps` is named and nvidia-cuda-mps-control is not installed: install it, or take the tier away"
NO_HOST_PIDS = "the agent is in a PID namespace of its own, but the driver tells the host's pids: run it with hostPID"


class Ground(msgspec.Struct, frozen=True):
    """What an agent stands on; `Agent.open` finds it."""

    settings: Settings
    backend: DeviceBackend
    """Open."""
    guard: DeviceGuard
    state: NodeState
    identity: Identity
    checkpoint: Checkpoint
    world: World


class Following:
    """Whose process is it: attachments, cgroups and ancestry."""

    def __init__(self, ground: Ground) -> None:
        """What can't be followed is a condition of the node."""
        settings, state, checkpoint, world = ground.settings, ground.state, ground.checkpoint, ground.world
        self.attachments = Attachments(checkpoint, world.processes)
        tree, why_no_tree = _cgroup_tree(settings, state.node_id, world)
        self.containment = Containment(
            tree, state.holders, self.attachments.all, why_no_tree, world.processes, self.attachments.cgroups
        )
        self.powerless = world.kernel.available()
        """Why no process can be signalled; empty: they can."""
        if settings.containment is not ContainmentMode.PROCESS_GROUP:
            state.duties.tell(CGROUPS, self.containment.note)
        state.duties.tell(SIGNALLING, self.powerless)
        state.note("namespace", NO_HOST_PIDS if world.machine.in_pid_namespace() else "")

    def lease_of(self, pid: int) -> str:
        """The lease that a process belongs to; empty: none."""
        found = self.containment.belonging(pid)
        return found.holders[0].lease_id if found is not None and found.holders else ""


class Holding:
    """What a lease may have: tiers, limits, signals that reach nobody else, and the watchdog behind them."""

    def __init__(self, ground: Ground, following: Following) -> None:
        """A tier that is named and can't be had is a condition of the node."""
        settings, state, world = ground.settings, ground.state, ground.world
        if Tier.MPS.word in settings.enforcement.tiers:
            from aliquot.agent.enforce.mps_control import installed  # noqa: PLC0415 - few nodes name it

            state.duties.tell(MPS, "" if installed() else MPS_MISSING)
        self.cuda = CudaDriver(world.try_cuda)
        self.chooser = Chooser(_tiers(ground, following, self.cuda))
        self.limits = LimitSetter(state, self.chooser, ground.guard, following.containment)
        self.signaller = world.signaller(
            following.containment.belongs,
            state.held,
            self.limits.release,
            processes=world.processes,
            kernel=world.kernel,
            monotonic_s=world.monotonic_s,
        )
        self.mailbox = Mailbox(state, world.clock)
        state.duties.changed = self.mailbox.request_snapshot
        self.condemned = Wakeup()
        rules = Rules(settings.watchdog.grace_max, settings.watchdog.stop_strays, settings.watchdog.over_max)
        self.watchdog = Watchdog(
            state=state,
            containment=following.containment,
            signaller=self.signaller,
            rules=rules,
            clock=world.clock,
            observe=self.limits.observe,
            condemned=self.condemned,
            tell=self.mailbox.over,
        )


def _cgroup_tree(settings: Settings, node_id: str, world: World) -> tuple[CgroupTree | None, str]:
    """The tree, or none and why. Raises `ContainmentError` where there must be one."""
    mode = settings.containment
    if mode is ContainmentMode.PROCESS_GROUP:
        return None, "the agent is set to"
    try:
        return world.open_cgroups(node_id, settings.cgroup_base), ""
    except ContainmentError as error:
        if mode is ContainmentMode.CGROUP:
            raise
        return None, error.explain()


def _tiers(ground: Ground, following: Following, cuda: CudaDriver) -> list[Enforcer]:
    """The tiers of this agent."""
    settings, backend, state = ground.settings, ground.backend, ground.state

    def blind(device_uuid: str) -> str:
        device = state.devices.get(device_uuid)
        return "the device is not there" if device is None else device.blind

    def tell(text: str) -> None:
        log.error("%s", text)
        state.happened.append(text)

    containment = following.containment
    return ground.world.make_tiers(
        settings.enforcement.tiers,
        directory=settings.enforcement_dir,
        throttle=settings.enforcement.throttle,
        blind=blind,
        powerless=lambda: following.powerless,
        unusable=lambda device: backend.unusable(device) or cuda.why_not(device),
        tell=tell,
        own=backend.enforcers(Cgroups(lambda: containment.note, lambda: containment.base, settings.state_dir / PROOFS)),
    )

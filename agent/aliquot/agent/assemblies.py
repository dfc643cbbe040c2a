"""An agent in four assemblies, each whole when it is constructed, and each made from those before it.

    Following   whose process is it
    Holding     what a lease may have, and what happens to whoever takes more
    Looking     what the devices and the machine tell
    Obeying     what the coordinator, and people on the node, want done

`agent.py` puts them together with what speaks to others. No decision is made here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from aliquot.agent.attaching import Attacher
from aliquot.agent.care import Care, Reopener
from aliquot.agent.connection import Coordinators
from aliquot.agent.controller import Controller
from aliquot.agent.core.enforcement import Rules
from aliquot.agent.core.kernel_log import bus_of
from aliquot.agent.core.signals import SIGNALS
from aliquot.agent.devices.base import DeviceBackend
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.devices.sampling import Attribution
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from aliquot.agent.disk.log_mark import LogMark
from aliquot.agent.disk.membership import Membership
from aliquot.agent.driver_events import DriverEvents
from aliquot.agent.duties import CGROUPS, DRIVER_EVENTS, KERNEL_LOG, MPS, SIGNALLING
from aliquot.agent.enforce.assembly import preloads
from aliquot.agent.enforce.base import PROOFS, Cgroups, Enforcer
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.enforce.mps_control import installed as mps_installed
from aliquot.agent.enforce.prerequisites import CudaDriver
from aliquot.agent.hosting.clients import Reached
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.partitions import Partitions
from aliquot.agent.poller import Poller
from aliquot.agent.processes.attachments import Attachments
from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.ending import Ender
from aliquot.agent.settings import DEFAULT_COORDINATOR, ContainmentMode, Settings
from aliquot.agent.state import NodeState
from aliquot.agent.wakeup import Wakeup
from aliquot.agent.watchdog import Watchdog
from aliquot.agent.world import World
from aliquot.common.errors import ConfigError
from aliquot.common.tiers import Tier
from aliquot.common.tls import ClientTls, is_local_address

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
            state.duties.tell(MPS, "" if mps_installed() else MPS_MISSING)
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


class Looking:
    """What the devices and the machine tell: polls, the driver's events, the kernel's log."""

    def __init__(
        self, ground: Ground, following: Following, holding: Holding, observe_poll: Callable[[float], None]
    ) -> None:
        """`observe_poll` is told how long each poll took, in seconds. Raises `ConfigError` for signals there aren't."""
        settings, backend, state, world = ground.settings, ground.backend, ground.state, ground.world
        if settings.ignore_signals:
            ignored = ", ".join(settings.ignore_signals)
            state.note("ignored", f"by its settings these take no card out here: {ignored}")
        self.poller = Poller(
            state=state,
            backend=backend,
            guard=ground.guard,
            attribution=Attribution(state, following.containment),
            watchdog=holding.watchdog,
            mailbox=holding.mailbox,
            observe_poll=observe_poll,
            keep_pace=holding.limits.keep_pace if settings.enforcement.throttle else None,
            world=world,
            poll=settings.poll,
            left_out=settings.leave_out,
            ignored=_ignored(settings.ignore_signals),
        )
        heard = DriverEvents(
            state=state,
            backend=backend,
            guard=ground.guard,
            poller=self.poller,
            mailbox=holding.mailbox,
            clock=world.clock,
            lease_of=following.lease_of,
        )
        self.events = world.make_events(backend, heard.take, partial(state.duties.tell, DRIVER_EVENTS))
        self.kernel_log = None
        if settings.kernel_log:
            self.kernel_log = world.make_kernel_log(
                Path(settings.kernel_log),
                partial(_card_at, state),
                heard.take,
                partial(state.duties.tell, KERNEL_LOG),
                LogMark(ground.checkpoint.record("log"), state.boot_id, world.records),
            )


class Obeying:
    """What the coordinator, and people on the node, want done: attaching, hosting, ending, cutting, repairing."""

    def __init__(self, ground: Ground, following: Following, holding: Holding, looking: Looking) -> None:
        """Made last, because all else goes on without it."""
        settings, state, checkpoint, world = ground.settings, ground.state, ground.checkpoint, ground.world
        self.attacher = Attacher(
            containment=following.containment,
            attachments=following.attachments,
            limits=holding.limits,
            processes=world.processes,
            socket_path=str(settings.socket),
            visibility=ground.backend.visibility,
        )
        self.host = world.make_host(
            state=state,
            attacher=self.attacher,
            containment=following.containment,
            signaller=holding.signaller,
            processes=world.processes,
            directory=settings.enforcement_dir / "hosts",
            uids=settings.hosting.users,
            offer=settings.hosting.services,
            reached=Reached(
                settings.hosting.advertise,
                settings.hosting.ports,
                lambda: coordinators(settings, world.read_member(settings.state_dir)).addresses,
            ),
            ahead=settings.hosting.ahead,
            preloads=preloads(settings.enforcement.tiers, throttle=settings.enforcement.throttle),
        )
        self.controller = Controller(
            state=state,
            identity=ground.identity,
            checkpoint=checkpoint,
            containment=following.containment,
            attachments=following.attachments,
            limits=holding.limits,
            ender=Ender(state, following.containment, holding.signaller, world.processes, world.monotonic_s),
            host=self.host,
            poller=looking.poller,
            mailbox=holding.mailbox,
            world=world,
            wakeup=holding.condemned,
        )
        self.partitions = Partitions(
            state,
            ground.guard,
            checkpoint.record("cuts"),
            looking.poller.discover,
            holding.mailbox,
            world,
            geometry=ground.backend.geometry,
            allowed=settings.mig.repartition,
        )
        self.care = Care(
            state=state,
            guard=ground.guard,
            backend=ground.backend,
            poller=looking.poller,
            events=looking.events,
            record=checkpoint.record("care"),
            mailbox=holding.mailbox,
            world=world,
            settings=settings.repair,
            devices=settings.devices,
        )
        self.reopener = Reopener(looking.poller, self.care, settings.poll.health / 1000)


def coordinators(settings: Settings, member: Membership | None) -> Coordinators:
    """Where they are, and how to talk to them. What is set goes before what joining has brought."""
    addresses = settings.coordinator or (member.addresses if member is not None else ()) or (DEFAULT_COORDINATOR,)
    tls = settings.tls.client()
    if tls is None and member is not None and (member.trusted_pem or not all(map(is_local_address, addresses))):
        tls = ClientTls(ca_pem=member.trusted_pem)
    return Coordinators(addresses, tls, member)


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


def _card_at(state: NodeState, bus: str) -> str:
    """The card at an address on the bus, as the kernel's log names it; empty: none of ours."""
    for device in state.devices.values():
        if device.info.pci_bus_id and bus_of(device.info.pci_bus_id) == bus:
            return device.info.physical_uuid
    return ""


def _ignored(causes: Iterable[str]) -> frozenset[str]:
    """Raises `ConfigError` for a cause that there is not."""
    known = {signal.cause for signal in SIGNALS if signal.takes_out}
    for cause in causes:
        if cause not in known:
            raise ConfigError(
                f"ignore_signals: there is no signal {cause!r}", hint=f"one of {', '.join(sorted(known))}"
            )
    return frozenset(causes)

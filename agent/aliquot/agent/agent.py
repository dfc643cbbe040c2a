"""Builds an agent from its parts, and starts and stops it. No decision is made here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from aliquot.agent.attaching import Attacher
from aliquot.agent.care import Care
from aliquot.agent.connection import Coordinators
from aliquot.agent.controller import Controller
from aliquot.agent.core.enforcement import Rules
from aliquot.agent.core.kernel_log import bus_of
from aliquot.agent.core.signals import SIGNALS
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.devices.sampling import Attribution
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from aliquot.agent.disk.log_mark import LogMark
from aliquot.agent.driver_events import DriverEvents
from aliquot.agent.enforce.base import PROOFS, Cgroups, Enforcer
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.enforce.mps_control import installed as mps_installed
from aliquot.agent.enforce.prerequisites import CudaDriver
from aliquot.agent.hosting.clients import Reached
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.local.service import LocalService
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.membership import Membership
from aliquot.agent.metrics.dcgm import DcgmCollector
from aliquot.agent.metrics.node import NodeCollector
from aliquot.agent.metrics.served import ServedCollector
from aliquot.agent.partitions import Partitions
from aliquot.agent.poller import Intervals, Poller
from aliquot.agent.processes.attachments import Attachments
from aliquot.agent.processes.cgroups import CgroupTree, ContainmentError
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.ending import Ender
from aliquot.agent.reopening import Reopener
from aliquot.agent.reporting import Description, Reporter
from aliquot.agent.senses import CGROUPS, DRIVER_EVENTS, KERNEL_LOG, MPS
from aliquot.agent.settings import DEFAULT_COORDINATOR, ContainmentMode, Settings
from aliquot.agent.state import NodeState
from aliquot.agent.stream import Stream
from aliquot.agent.watchdog import Watchdog
from aliquot.agent.world import World
from aliquot.common.errors import ConfigError
from aliquot.common.names import validate_labels, validate_node, validate_pool
from aliquot.common.tiers import Tier
from aliquot.common.tls import ClientTls, is_local_address

log = logging.getLogger(__name__)
T = TypeVar("T")

OPEN_TIMEOUT_S = 60.0
DRIVER_RETRY_S = 10.0
FIRST_ROUND_S = 10.0
MPS_MISSING = "the tier `mps` is named and nvidia-cuda-mps-control is not installed: install it, or take the tier away"
NO_HOST_PIDS = "the agent is in a PID namespace of its own, but the driver tells the host's pids: run it with hostPID"


class Agent:
    """One node's agent, complete when constructed. Call `start`, `run` until cancelled, `close`; reservations stay."""

    def __init__(
        self,
        settings: Settings,
        backend: DeviceBackend,
        *,
        guard: DeviceGuard,
        state: NodeState,
        identity: Identity,
        checkpoint: Checkpoint,
        world: World,
    ) -> None:
        """`backend` is open. `open` makes the arguments."""
        self._settings = settings
        self._backend = backend
        self._guard = guard
        self._checkpoint = checkpoint
        self.state = state
        self.metrics_port: int | None = None
        """Where metrics are served, once started."""
        self.metrics = world.make_metrics()
        attachments = Attachments(checkpoint, world.processes)
        tree, why_no_tree = self._cgroup_tree(world)
        self._containment = containment = Containment(
            tree, state.holders, attachments.all, why_no_tree, world.processes, attachments.cgroups
        )
        signaller = world.signaller(
            containment.belongs,
            state.held,
            processes=world.processes,
            kernel=world.kernel,
            monotonic_s=world.monotonic_s,
        )
        powerless = world.kernel.available()
        if settings.containment is not ContainmentMode.PROCESS_GROUP:
            state.senses.tell(CGROUPS, containment.note)
        if Tier.MPS.word in settings.enforcement.tiers:
            state.senses.tell(MPS, "" if mps_installed() else MPS_MISSING)
        if settings.ignore_signals:
            self._note("ignored", f"by its settings these take no card out here: {', '.join(settings.ignore_signals)}")
        self._note("signals", powerless)
        self._note("namespace", NO_HOST_PIDS if world.machine.in_pid_namespace() else "")
        self._cuda = CudaDriver(world.try_cuda)
        chooser = Chooser(self._tiers(world, powerless))
        limits = LimitSetter(state, chooser, guard, containment)
        rules = Rules(settings.watchdog.grace_max, settings.watchdog.stop_strays, settings.watchdog.over_max)
        watchdog = Watchdog(state, containment, signaller, rules, world.clock, limits.observe)
        mailbox = Mailbox(state, world.clock)
        state.senses.changed = mailbox.request_snapshot
        self.poller = Poller(
            state=state,
            backend=backend,
            guard=guard,
            attribution=Attribution(state, containment),
            watchdog=watchdog,
            mailbox=mailbox,
            observe_poll=self.metrics.observe_poll,
            world=world,
            intervals=_intervals(settings),
        )
        attacher = Attacher(
            state=state,
            containment=containment,
            attachments=attachments,
            chooser=chooser,
            limits=limits,
            processes=world.processes,
            socket_path=str(settings.socket),
            visibility=backend.visibility,
        )
        host = world.make_host(
            state=state,
            attacher=attacher,
            containment=containment,
            signaller=signaller,
            processes=world.processes,
            directory=settings.enforcement_dir / "hosts",
            uids=settings.hosting.users,
            offer=settings.hosting.services,
            reached=Reached(
                settings.hosting.advertise,
                settings.hosting.ports,
                lambda: _coordinators(settings, world.read_member(settings.state_dir)).addresses,
            ),
        )
        self.controller = Controller(
            state=state,
            identity=identity,
            checkpoint=checkpoint,
            containment=containment,
            attachments=attachments,
            limits=limits,
            ender=Ender(state, containment, signaller, world.processes, world.monotonic_s),
            host=host,
            poller=self.poller,
            mailbox=mailbox,
            world=world,
        )
        watchdog.end_lease = self.controller.revoke
        self.partitions = Partitions(
            state,
            guard,
            checkpoint.cuts_record,
            self.poller.discover,
            mailbox,
            world,
            geometry=backend.geometry,
            allowed=settings.mig.repartition,
        )
        events = DriverEvents(
            state=state,
            backend=backend,
            guard=guard,
            poller=self.poller,
            mailbox=mailbox,
            clock=world.clock,
            lease_of=lambda pid: _lease_of(containment, pid),
        )
        self._events = world.make_events(backend, events.take, partial(state.senses.tell, DRIVER_EVENTS))
        self._kernel_log = (
            world.make_kernel_log(
                Path(settings.kernel_log),
                self._card_at,
                events.take,
                partial(state.senses.tell, KERNEL_LOG),
                LogMark(checkpoint.log_record, state.boot_id, world.records),
            )
            if settings.kernel_log
            else None
        )
        self.care = Care(
            state=state,
            guard=guard,
            backend=backend,
            poller=self.poller,
            events=self._events,
            record=checkpoint.care_record,
            mailbox=mailbox,
            world=world,
            settings=settings.repair,
            devices=settings.devices,
        )
        self._reopener = Reopener(self.poller, self.care, settings.poll.health / 1000)
        description = Description(
            pool=settings.pool,
            labels=settings.labels(),
            failure_domain=settings.failure_domain,
            version=world.version(),
        )
        self.stream = Stream(
            state=state,
            orders=self.controller,
            cards=self.partitions,
            care=self.care,
            reporter=Reporter(
                state=state,
                identity=identity,
                limits=limits,
                partitions=self.partitions,
                host=host,
                care=self.care,
                mailbox=mailbox,
                description=description,
                machine=world.machine,
            ),
            mailbox=mailbox,
            look_up=lambda: _coordinators(settings, world.read_member(settings.state_dir)),
            keep=lambda member: world.write_member(settings.state_dir, member),
            world=world,
        )
        self.metrics.registry.register(
            NodeCollector(state, watchdog, signaller, lambda: self.stream.sessions, lambda: backend.calls)
        )
        self.metrics.registry.register(ServedCollector(lambda: state.name, host.figures))
        if settings.dcgm_names:
            self.metrics.registry.register(DcgmCollector(state))
        service = LocalService(
            state=state,
            containment=containment,
            attachments=attachments,
            attacher=attacher,
            limits=limits,
            processes=world.processes,
            protects=signaller.is_agent_or_init,
            look=self.poller.look,
            version=world.version(),
            set_again=self.controller.set_again,
        )
        self.local = world.make_server(service, settings.socket)

    @classmethod
    async def open(cls, settings: Settings, backend: DeviceBackend, world: World | None = None) -> Agent:
        """Lock the state directory and find out which node this is.

        Raises `AliquotError` for what an administrator has to change. Waits for a driver that is not there yet.
        """
        world = world or World()
        name = validate_node(settings.node_name or world.machine.host_name(), "node_name")
        if settings.pool:
            validate_pool(settings.pool)
        validate_labels(settings.labels())
        guard = world.make_guard(settings.poll.timeout / 1000)
        boot_id = world.boot_id()
        world.check_state(settings.state_dir)
        checkpoint = world.open_checkpoint(settings.state_dir, boot_id)
        driver = await _retry_until_ready(guard, backend.open, "no driver yet")
        found = await _retry_until_ready(guard, backend.discover, "no devices yet")
        uuids = sorted({info.physical_uuid for info in found.devices})
        identity = world.open_identity(checkpoint.node_record, settings.node_id, uuids)
        return cls(
            settings,
            backend,
            guard=guard,
            state=NodeState(identity.node_id, name, boot_id, driver),
            identity=identity,
            checkpoint=checkpoint,
            world=world,
        )

    async def start(self) -> None:
        """Restore reservations and listen. Raises `AliquotError` for what an administrator has to change."""
        settings = self._settings
        await asyncio.to_thread(self._cuda.look)
        await self.poller.discover()
        await self.partitions.restore()
        await self.care.restore()
        await self.controller.restore()
        for holder in self._containment.sweep():
            self.state.notes[f"leftover {holder}"] = (
                f"processes of lease {holder.lease_id} are left, but no reservation: they count as foreign"
            )
        await self.local.start()
        if settings.metrics_port >= 0:
            self.metrics_port = self.metrics.serve(
                settings.metrics_host, settings.metrics_port, settings.metrics_token_file, settings.tls.server()
            )
        log.info(
            "agent started",
            extra={
                "node_id": self.state.node_id,
                "node": self.state.name,
                "devices": len(self.state.devices),
                "socket": str(settings.socket),
                "metrics_port": self.metrics_port,
            },
        )
        for note in self.state.notes.values():
            log.warning("%s", note)

    async def run(self) -> None:
        """Poll, enforce, serve and report until cancelled, or until a defect ends one of these tasks."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.poller.run(), name="poller")
            tasks.create_task(self.controller.run(), name="controller")
            tasks.create_task(self._events.run(), name="events")
            tasks.create_task(self._reopener.run(), name="reopener")
            if self._kernel_log is not None:
                tasks.create_task(self._kernel_log.run(), name="kernel log")
            tasks.create_task(self._connect(), name="stream")

    async def close(self) -> None:
        """Stop listening; close the driver and unlock the state directory. Limits and processes stay as they are."""
        await self.local.close()
        await self.partitions.close()
        await self.care.close()
        self.metrics.close()
        # The driver is not closed while a thread waits in it: the end of the process does that as well.
        if await self._events.gone():
            with contextlib.suppress(DeviceError):
                await self._guard.run("", self._backend.close)
        self._guard.close()
        self._containment.close()
        self._checkpoint.close()

    async def _connect(self) -> None:
        # The first snapshot should know what foreign processes hold; a device that hangs must not delay it for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_S):
                await self.poller.first_round.wait()
        await self.stream.run()

    def _cgroup_tree(self, world: World) -> tuple[CgroupTree | None, str]:
        mode = self._settings.containment
        if mode is ContainmentMode.PROCESS_GROUP:
            return None, "the agent is set to"
        try:
            return world.open_cgroups(self.state.node_id, self._settings.cgroup_base), ""
        except ContainmentError as error:
            if mode is ContainmentMode.CGROUP:
                raise
            return None, error.explain()

    def _tiers(self, world: World, powerless: str) -> list[Enforcer]:
        """The tiers of this agent."""
        state, containment, enforcement = self.state, self._containment, self._settings.enforcement

        def blind(device_uuid: str) -> str:
            device = state.devices.get(device_uuid)
            return "the device is not there" if device is None else device.blind

        def tell(text: str) -> None:
            log.error("%s", text)
            state.happened.append(text)

        return world.make_tiers(
            enforcement.tiers,
            directory=self._settings.enforcement_dir,
            throttle=enforcement.throttle,
            blind=blind,
            powerless=lambda: powerless,
            unusable=lambda device: self._backend.unusable(device) or self._cuda.why_not(device),
            tell=tell,
            own=self._backend.enforcers(
                Cgroups(lambda: containment.note, lambda: containment.base, self._settings.state_dir / PROOFS)
            ),
        )

    def _card_at(self, bus: str) -> str:
        """The card at an address on the bus, as the kernel's log names it; empty: none of ours."""
        for device in self.state.devices.values():
            if device.info.pci_bus_id and bus_of(device.info.pci_bus_id) == bus:
                return device.info.physical_uuid
        return ""

    def _note(self, subject: str, text: str) -> None:
        if text:
            self.state.notes[subject] = text


def _lease_of(containment: Containment, pid: int) -> str:
    found = containment.belonging(pid)
    return found.holders[0].lease_id if found is not None and found.holders else ""


def _coordinators(settings: Settings, member: Membership | None) -> Coordinators:
    """Where they are, and how to talk to them. What is set goes before what joining has brought."""
    addresses = settings.coordinator or (member.addresses if member is not None else ()) or (DEFAULT_COORDINATOR,)
    tls = settings.tls.client()
    if tls is None and member is not None and (member.trusted_pem or not all(map(is_local_address, addresses))):
        tls = ClientTls(ca_pem=member.trusted_pem)
    return Coordinators(addresses, tls, member)


def _ignored(causes: Iterable[str]) -> frozenset[str]:
    """Raises `ConfigError` for a cause that there is not."""
    known = {signal.cause for signal in SIGNALS if signal.takes_out}
    for cause in causes:
        if cause not in known:
            raise ConfigError(
                f"ignore_signals: there is no signal {cause!r}", hint=f"one of {', '.join(sorted(known))}"
            )
    return frozenset(causes)


def _intervals(settings: Settings) -> Intervals:
    poll = settings.poll
    return Intervals(
        memory_s=poll.memory / 1000,
        idle_s=poll.idle / 1000,
        load_s=poll.load / 1000,
        health_s=poll.health / 1000,
        calm_s=poll.calm / 1000,
        discovery_s=poll.discovery / 1000,
        ignored=_ignored(settings.ignore_signals),
    )


async def _retry_until_ready(guard: DeviceGuard, call: Callable[[], T], problem: str) -> T:
    """Call the driver until it answers, however long that takes."""
    while True:
        try:
            return await guard.run("", call, timeout_s=OPEN_TIMEOUT_S)
        except DeviceError as error:
            log.error("%s, trying again: %s", problem, error.explain())  # noqa: TRY400
            await asyncio.sleep(DRIVER_RETRY_S)

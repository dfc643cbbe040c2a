"""An agent, wired together: which part gets which. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging

from aliquot.agent import identity, machine, signals
from aliquot.agent.attachments import Attachments
from aliquot.agent.cgroups import CgroupTree, ContainmentError
from aliquot.agent.checkpoint import Checkpoint
from aliquot.agent.containment import Containment
from aliquot.agent.controller import Controller
from aliquot.agent.core.enforcement import Rules
from aliquot.agent.core.samples import DriverInfo
from aliquot.agent.dcgm import DcgmCollector
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.ending import Ender
from aliquot.agent.enforce.assembly import assemble
from aliquot.agent.enforce.base import Enforcer
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.enforce.means import CudaDriver
from aliquot.agent.events import EventWatcher
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.local.server import LocalServer
from aliquot.agent.local.service import LocalService
from aliquot.agent.metrics import Metrics, NodeCollector
from aliquot.agent.partitions import Partitions
from aliquot.agent.police import Police
from aliquot.agent.poller import Intervals, Poller
from aliquot.agent.reporting import Description, Reporter
from aliquot.agent.sampling import Attribution
from aliquot.agent.settings import ContainmentMode, Settings
from aliquot.agent.signals import Signaller
from aliquot.agent.state import NodeState
from aliquot.agent.stream import Coordinators, Stream
from aliquot.common.clock import SystemClock
from aliquot.common.names import validate_labels, validate_node, validate_pool

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 60.0
DRIVER_RETRY_S = 10.0
FIRST_ROUND_S = 10.0


def version() -> str:
    """The installed distribution's version."""
    try:
        return importlib.metadata.version("aliquot")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Agent:
    """One node's agent. `start`, then `run` until cancelled, then `close`; reservations stay."""

    def __init__(self, settings: Settings, backend: DeviceBackend) -> None:
        self._settings = settings
        self._backend = backend
        self._clock = SystemClock()
        self._guard = DeviceGuard(settings.poll.timeout / 1000)
        self.metrics_port: int | None = None
        """Where metrics are served, once started."""

    async def start(self) -> None:
        """Take the state directory, find the devices, take up reservations, and listen.

        Raises `AliquotError` for what an administrator has to change. Waits for a driver that is not there
        yet.
        """
        settings = self._settings
        name = validate_node(settings.node_name or machine.host_name(), "node_name")
        if settings.pool:
            validate_pool(settings.pool)
        validate_labels(settings.labels())
        boot_id = identity.boot_id()
        self._checkpoint = Checkpoint.open(settings.state_dir, boot_id)
        driver = await self._open_backend()
        uuids = await self._first_discovery()
        known = identity.Identity.open(self._checkpoint.node_record, settings.node_id, uuids)
        self.state = NodeState(known.node_id, name, boot_id, driver)
        self._wire(known)
        await self.poller.discover()
        await self.partitions.restore()
        await self.controller.restore()
        for holder in self._containment.sweep():
            self.state.notes[f"leftover {holder}"] = (
                f"processes of lease {holder.lease_id} are left, but no reservation: they count as foreign"
            )
        await self.local.start()
        if settings.metrics_port >= 0:
            self.metrics_port = self.metrics.serve(settings.metrics_host, settings.metrics_port)
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
        """Poll, enforce, serve and talk until cancelled, or until one of these fails for a reason that is a
        defect.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.poller.run(), name="poller")
            tasks.create_task(self.controller.run(), name="controller")
            tasks.create_task(self._events.run(), name="events")
            tasks.create_task(self._talk(), name="stream")

    async def close(self) -> None:
        """Stop listening and let go of the driver and the state directory. Limits and processes stay as they
        are.
        """
        await self.local.close()
        await self.partitions.close()
        self.metrics.close()
        # Under a thread that waits in the driver nothing is torn down; the end of the process does that as
        # well.
        if await self._events.gone():
            with contextlib.suppress(DeviceError):
                await self._guard.run("", self._backend.close)
        self._guard.close()
        self._containment.close()
        self._checkpoint.close()

    async def _talk(self) -> None:
        # The first snapshot should know what foreign processes hold; a device that hangs must not delay it
        # for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_S):
                await self.poller.first_round.wait()
        await self.stream.run()

    # ----------------------------------------------------------------------------------------------------
    # wiring

    async def _open_backend(self) -> DriverInfo:
        while True:
            try:
                return await self._guard.run("", self._backend.open, timeout_s=OPEN_TIMEOUT_S)
            except DeviceError as error:
                log.error("no driver yet, trying again: %s", error.explain())  # noqa: TRY400
                await asyncio.sleep(DRIVER_RETRY_S)

    async def _first_discovery(self) -> list[str]:
        while True:
            try:
                found = await self._guard.run("", self._backend.discover, timeout_s=OPEN_TIMEOUT_S)
            except DeviceError as error:
                log.error("no devices yet, trying again: %s", error.explain())  # noqa: TRY400
                await asyncio.sleep(DRIVER_RETRY_S)
                continue
            return sorted({info.physical_uuid for info in found.devices})

    def _wire(self, known: identity.Identity) -> None:
        settings, state, clock = self._settings, self.state, self._clock
        attachments = Attachments(self._checkpoint)
        tree, why_no_tree = self._cgroup_tree(known.node_id)
        self._containment = Containment(tree, state.holders, attachments.all, why_no_tree)
        self._note("containment", self._containment.note)
        signaller = Signaller(self._containment.belongs, state.held)
        powerless = signals.available()
        self._note("signals", powerless)
        if machine.in_pid_namespace():
            self._note(
                "namespace",
                "the agent is in a PID namespace of its own, but the driver tells the host's pids: run it with hostPID",
            )
        chooser = Chooser(_enforcers(settings, state, self._containment, powerless))
        limits = LimitSetter(state, chooser, self._guard, self._containment)
        rules = Rules(settings.watchdog.grace_max, settings.watchdog.stop_strays)
        police = Police(state, self._containment, signaller, rules, clock, limits.observe)
        self.poller = Poller(
            state=state,
            backend=self._backend,
            guard=self._guard,
            attribution=Attribution(state, self._containment),
            police=police,
            clock=clock,
            intervals=Intervals(
                memory_s=settings.poll.memory / 1000,
                idle_s=settings.poll.idle / 1000,
                load_s=settings.poll.load / 1000,
                health_s=settings.poll.health / 1000,
                calm_s=settings.poll.calm / 1000,
                discovery_s=settings.poll.discovery / 1000,
            ),
        )
        self.controller = Controller(
            state=state,
            identity=known,
            checkpoint=self._checkpoint,
            containment=self._containment,
            attachments=attachments,
            limits=limits,
            ender=Ender(state, self._containment, signaller),
            clock=clock,
        )
        description = Description(
            pool=settings.pool, labels=settings.labels(), failure_domain=settings.failure_domain, version=version()
        )
        self.partitions = Partitions(
            state,
            self._guard,
            self._checkpoint.cuts_record,
            self.poller.discover,
            allowed=settings.mig.repartition,
        )
        reporter = Reporter(state, self.controller, limits, self.partitions, description, clock)
        coordinators = Coordinators(settings.coordinator, settings.tls.client(), settings.insecure)
        self.stream = Stream(state, self.controller, reporter, coordinators)
        self.metrics = Metrics()
        self.metrics.registry.register(
            NodeCollector(state, police, signaller, lambda: self.stream.sessions, lambda: self._backend.calls)
        )
        if settings.dcgm_names:
            self.metrics.registry.register(DcgmCollector(state))
        self._events = EventWatcher(self._backend, self.poller.take_event)
        service = LocalService(
            state=state,
            containment=self._containment,
            attachments=attachments,
            chooser=chooser,
            limits=limits,
            look=self.poller.look,
            socket_path=str(settings.socket),
            version=version(),
        )
        self.local = LocalServer(service, settings.socket)
        self.controller.on_report = self.stream.wake
        self.controller.on_unwritable = self.poller.take_out
        self.controller.on_reserved = self.poller.hurry
        self.poller.on_look = self.stream.seen
        self.poller.on_devices = self.stream.refresh
        self.poller.on_poll = self.metrics.observe_poll
        self.stream.on_cut = self.partitions.obey
        self.partitions.on_result = self.stream.refresh

    def _cgroup_tree(self, node_id: str) -> tuple[CgroupTree | None, str]:
        mode = self._settings.containment
        if mode is ContainmentMode.PROCESS_GROUP:
            return None, "the agent is set to"
        try:
            return CgroupTree.open(node_id, self._settings.cgroup_base), ""
        except ContainmentError as error:
            if mode is ContainmentMode.CGROUP:
                raise
            return None, error.explain()

    def _note(self, subject: str, text: str) -> None:
        if text:
            self.state.notes[subject] = text


def _enforcers(settings: Settings, state: NodeState, containment: Containment, powerless: str) -> list[Enforcer]:
    """The tiers of this agent."""

    def blind(device_uuid: str) -> str:
        device = state.devices.get(device_uuid)
        return "the device is not there" if device is None else device.blind

    def tell(text: str) -> None:
        log.error("%s", text)
        state.happened.append(text)

    return assemble(
        settings.enforcement.tiers,
        directory=settings.enforcement_dir,
        throttle=settings.enforcement.throttle,
        why_no_cgroups=lambda: containment.note,
        blind=blind,
        powerless=lambda: powerless,
        no_cuda=CudaDriver().why_not,
        tell=tell,
    )

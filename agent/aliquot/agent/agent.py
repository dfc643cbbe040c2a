"""Builds an agent from its parts, and starts and stops it. No decision is made here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aliquot.agent.assemblies import Looking, Obeying, coordinators
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from aliquot.agent.duties import CERTIFICATE
from aliquot.agent.local.service import LocalService
from aliquot.agent.parts import Following, Ground, Holding
from aliquot.agent.reporting import Reporter
from aliquot.agent.settings import Settings
from aliquot.agent.state import NodeState
from aliquot.agent.stream import Stream
from aliquot.agent.world import World
from aliquot.common.names import validate_labels, validate_node, validate_pool
from aliquot.common.notify import notify
from aliquot.common.validity import Certificates

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

log = logging.getLogger(__name__)
T = TypeVar("T")

OPEN_TIMEOUT_S = 60.0
DRIVER_RETRY_S = 10.0
FIRST_ROUND_S = 10.0


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
        ground = Ground(settings, backend, guard, state, identity, checkpoint, world)
        self._following = following = Following(ground)
        self._holding = holding = Holding(ground, following)
        self._looking = looking = Looking(ground, following, holding, self.metrics.observe_poll)
        self.poller = looking.poller
        self._obeying = obeying = Obeying(ground, following, holding, looking)
        self.partitions, self.care = obeying.partitions, obeying.care
        reporter = Reporter(ground, holding, obeying.host, self.partitions, self.care)
        self.stream = Stream(
            ground,
            holding,
            obeying.controller,
            reporter,
            look_up=lambda: coordinators(settings, world.read_member(settings.state_dir)),
        )
        certificates = Certificates(world.clock.now_ms, settings.tls.server(), {"node": lambda: self.stream.life})
        state.duties.watch(CERTIFICATE, certificates.look)
        self.metrics.collectors = partial(self._collectors, certificates)
        service = LocalService(
            state=state,
            attacher=obeying.attacher,
            protects=holding.signaller.is_agent_or_init,
            look=self.poller.look,
            version=world.version,
            set_again=obeying.controller.set_again,
        )
        self.local = world.make_server(service, settings.socket)

    def _collectors(self, certificates: Certificates) -> list[Collector]:
        from aliquot.agent.metrics.node import NodeCollector, ServedCollector  # noqa: PLC0415 - see `metrics.endpoint`

        state, backend, holding = self.state, self._backend, self._holding
        found: list[Collector] = [
            NodeCollector(
                state,
                holding.watchdog,
                holding.signaller,
                lambda: self.stream.sessions,
                lambda: backend.calls,
                certificates,
            ),
            ServedCollector(lambda: state.name, self._obeying.host.figures),
        ]
        if self._settings.dcgm_names:
            from aliquot.agent.metrics.dcgm import DcgmCollector  # noqa: PLC0415 - few nodes ask for these names

            found.append(DcgmCollector(state))
        return found

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
        identity = world.open_identity(checkpoint.record("node"), settings.node_id, uuids)
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
        await asyncio.to_thread(self._holding.cuda.look)
        await self.poller.discover()
        await self.partitions.restore()
        await self.care.restore()
        await self._obeying.controller.restore()
        for holder in self._following.containment.sweep():
            self.state.note(
                f"leftover {holder}",
                f"processes of lease {holder.lease_id} are left, but no reservation: they count as foreign",
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
            tasks.create_task(self._obeying.controller.run(), name="controller")
            tasks.create_task(self._looking.events.run(), name="events")
            tasks.create_task(self._obeying.reopener.run(), name="reopener")
            if self._looking.kernel_log is not None:
                tasks.create_task(self._looking.kernel_log.run(), name="kernel log")
            tasks.create_task(self._connect(), name="stream")

    async def close(self) -> None:
        """Stop listening; close the driver and unlock the state directory. Limits and processes stay as they are."""
        await self.local.close()
        await self.partitions.close()
        await self.care.close()
        self.metrics.close()
        # The driver is not closed while a thread waits in it: the end of the process does that as well.
        if await self._looking.events.gone():
            with contextlib.suppress(DeviceError):
                await self._guard.run("", self._backend.close)
        self._guard.close()
        self._following.containment.close()
        self._checkpoint.close()

    async def _connect(self) -> None:
        # The first snapshot should know what foreign processes hold; a device that hangs must not delay it for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ROUND_S):
                await self.poller.first_round.wait()
        await self.stream.run()


async def _retry_until_ready(guard: DeviceGuard, call: Callable[[], T], problem: str) -> T:
    """Call the driver until it answers, however long that takes."""
    while True:
        try:
            return await guard.run("", call, timeout_s=OPEN_TIMEOUT_S)
        except DeviceError as error:
            log.error("%s, trying again: %s", problem, error.explain())  # noqa: TRY400
            notify(f"STATUS={problem}: {error.message}")
            await asyncio.sleep(DRIVER_RETRY_S)

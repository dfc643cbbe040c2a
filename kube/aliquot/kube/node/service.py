"""Wires the node's parts and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aliquot.client import AgentError
from aliquot.client.local import AgentInfo, LocalAgent, LocalStatus
from aliquot.kube.node.advertising import Advertiser
from aliquot.kube.node.agent import Agent
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.binder import Binder
from aliquot.kube.node.cgroups import PodCgroups
from aliquot.kube.node.device_plugin import DevicePlugin
from aliquot.kube.node.dra.plugin import DraPlugin
from aliquot.kube.node.dra.prepared import PreparedClaims
from aliquot.kube.node.dra.preparing import CdiNeeded, Preparer
from aliquot.kube.node.dra.publishing import Publisher
from aliquot.kube.node.injection import CdiInjection, Injection, MountInjection
from aliquot.kube.node.leaving import Leaving
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts
from aliquot.kube.node.pod_resources import PodResources
from aliquot.kube.node.records import Records
from aliquot.kube.node.registration import Registration
from aliquot.kube.node.releasing import Release
from aliquot.kube.node.reporting import Reporting
from aliquot.kube.node.settings import LIBRARY, InjectionMode, Mode, Settings
from aliquot.kube.node.sole import sole

log = logging.getLogger(__name__)

AGENT_RETRY_S = 1.0


@dataclass(slots=True)
class Claims:
    """The parts of the mode `dra`."""

    prepared: PreparedClaims
    plugin: DraPlugin
    publisher: Publisher


class NodeService:
    """The node's part. `open` makes it, `run` runs it until cancelled."""

    def __init__(
        self, info: AgentInfo, settings: Settings, node: str, cluster: ApiServer, release: Release | None
    ) -> None:
        self.settings = settings
        self.node = node
        self.node_id = info.node_id
        self.agent = Agent(settings.agent_socket)
        self.cluster = cluster
        self.reporting = Reporting(cluster)
        parts = NodeParts(
            node=node,
            pool_names=(info.node_id, info.node_name),
            agent=self.agent,
            resources=PodResources(settings.pod_resources, time.monotonic),
            cluster=cluster,
            cgroups=PodCgroups(settings.cgroup_root, settings.kubelet_cgroup_root),
            injection=_injection(settings),
            records=Records(settings.state_dir / "bound"),
            reporting=self.reporting,
        )
        self.binder = Binder(parts)
        self.leaving = Leaving(parts, release)
        dra = settings.mode is Mode.DRA
        self.claims = _claims(settings, parts, self.binder) if dra else None
        plugin = None if dra else DevicePlugin(parts.injection, self.binder.prepare)
        self.registration = Registration(plugin, settings.device_plugins) if plugin is not None else None
        self.advertiser = Advertiser(parts, plugin)
        self._changed = asyncio.Event()
        self._listed = False

    @classmethod
    async def open(cls, settings: Settings, node: str, cluster: ApiServer, release: Release | None) -> NodeService:
        """Wait for the agent to say which node this is. Raises `OSError`, `CdiNeeded`."""
        return cls(await _info(LocalAgent(settings.agent_socket)), settings, node, cluster, release)

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve the kubelet and follow the node's pods until cancelled, or until a defect ends one of these tasks.

        `ready` is called when nobody else does so here. Raises `SecondPart`.
        """
        settings = self.settings
        with sole(settings.device_plugins, self.node):
            ready()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow_pods(), name="pods")
                    tasks.create_task(self._follow_node(), name="node")
                    tasks.create_task(self._reconcile(), name="reconcile")
                    tasks.create_task(self._register(), name="registration")
            finally:
                if self.registration is not None:
                    await self.registration.plugin.close()
                if self.claims is not None:
                    await self.claims.plugin.close()

    async def _register(self) -> None:
        """The kubelet hears of units when it is known how many there are."""
        await self.advertiser.look(await self._status())
        if self.claims is not None:
            await self.claims.plugin.serve(self.settings.plugins, self.settings.plugins_registry)
        if self.registration is not None:
            await self.registration.run()

    async def _follow_pods(self) -> None:
        async for pods in self.cluster.pods_of_node(self.node):
            self.binder.seen(self._told(pods))
            self._listed = True
            self._changed.set()

    async def _follow_node(self) -> None:
        async for record in self.cluster.node_record(self.node):
            self.advertiser.record = record
            self._changed.set()

    async def _reconcile(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.interval_s):
                    await self._changed.wait()
            self._changed.clear()
            status = await self._status()
            await self.advertiser.look(status)
            if self.claims is not None:
                record = self.advertiser.record
                uid = record.uid if record is not None else ""
                await self.claims.publisher.look(status, uid, offered=self.advertiser.offered)
            if status is None or not self._listed:
                continue
            pods = self._told(self.reporting.pods)
            self.binder.seen(pods)
            try:
                await self.binder.reconcile(pods)
                await self.leaving.look(pods, await self.agent.status())
            except AgentError as error:
                log.warning("the agent does not answer: %s", error.message)
            except OSError as error:
                log.error("what was bound can't be written down: %s", error)  # noqa: TRY400
            await self.reporting.write()

    def _told(self, pods: Mapping[str, Pod]) -> Mapping[str, Pod]:
        """Pods with what their claims say."""
        return pods if self.claims is None else self.claims.prepared.told(pods)

    async def _status(self) -> LocalStatus | None:
        try:
            return await self.agent.status()
        except AgentError:
            return None


async def _info(agent: LocalAgent) -> AgentInfo:
    while True:
        try:
            return await asyncio.to_thread(agent.info)
        except AgentError as error:
            log.warning("waiting for the agent: %s", error.message)
            await asyncio.sleep(AGENT_RETRY_S)


def _injection(settings: Settings) -> Injection:
    if settings.injection is InjectionMode.CDI:
        return CdiInjection(settings.cdi_dir)
    return MountInjection(settings.state_dir / "places", LIBRARY if settings.preload else "")


def _claims(settings: Settings, parts: NodeParts, binder: Binder) -> Claims:
    if settings.injection is not InjectionMode.CDI:
        raise CdiNeeded(
            "claims are given to containers by CDI, and injection is by mounts",
            hint="set injection to cdi (containerd from 1.7 with enable_cdi), or mode to classic",
        )
    prepared = PreparedClaims(settings.state_dir / "claims")
    preparer = Preparer(parts, binder, prepared)
    plugin = DraPlugin(preparer.prepare, preparer.unprepare)
    return Claims(prepared, plugin, Publisher(parts))

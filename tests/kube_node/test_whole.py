"""From a pod that somebody creates to a container that is held, with all that is ours: a scheduler asks the extender or
allocates a claim that the controllers mirror; the coordinator grants, the agent enforces, and the node's part lets a
container start. Then all of it is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot import simgpu
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.controllers.claims import ClaimController
from aliquot.kube.core import names
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.objects import CONDITION
from aliquot.kube.node.protos import deviceplugin_pb2, dra_pb2
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import Mode
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings
from aliquot.v1 import pool_pb2, types_pb2
from tests.agent.foreign_cgroups import hierarchy, subtree
from tests.agent.harness import Node, burn_command, closing, make_node, wait_for_output
from tests.coordinator import pool as pools
from tests.kube.claim_scheduler import ClaimScheduler
from tests.kube.conformance import place as placing
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube_node import containers
from tests.kube_node.conftest import NODE
from tests.kube_node.fake_kubelet import AdmittedPod, Kubelet, StartRefused, listening

pytestmark = pytest.mark.root("to start containers")

GIB = 1 << 30
LIMITS = {names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 4096}


@dataclass
class Whole:
    """A cluster with one node."""

    place: placing.Place
    agent: Node
    kubelet: Kubelet
    mode: Mode

    async def create(self, name: str) -> None:
        """A pod that asks for a quarter of a device and 4 GiB of its memory."""
        if self.mode is Mode.CLASSIC:
            await self.place.create(name, LIMITS)
            return
        capacity = {"requests": {"percent": "25", "memory": "4Gi"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.aliquot.dev", "capacity": capacity}}
        claim = {"metadata": {"name": f"{name}-gpu"}, "spec": {"devices": {"requests": [request]}}}
        await self.place.client.post(resources.RESOURCE_CLAIMS.path("default"), claim)
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]}
        await self.place.client.post(resources.PODS.path("default"), {"metadata": {"name": name}, "spec": spec})

    async def admitted(self, name: str) -> AdmittedPod:
        """As the kubelet does with a pod that is bound to its node."""
        await self.place.bound(name)
        uid = (await self.place.pods())[name]["metadata"]["uid"]
        if self.mode is Mode.CLASSIC:
            return await self.kubelet.admit(name, uid, {"main": LIMITS[names.GPU_PERCENT]})
        pod = await self.kubelet.admit_claim(name, uid)
        cdi = await self.prepared(name)
        devices = [deviceplugin_pb2.CDIDevice(name=each) for each in dict.fromkeys(cdi)]
        pod.answers["main"] = deviceplugin_pb2.ContainerAllocateResponse(cdi_devices=devices)
        return pod

    async def prepared(self, name: str) -> list[str]:
        """Asked again until it is, as kubelets do."""
        path = resources.RESOURCE_CLAIMS.path("default", f"{name}-gpu")
        meta = msgspec.json.decode(await self.place.client.get(path))["metadata"]
        claim = dra_pb2.Claim(namespace="default", name=meta["name"], uid=meta["uid"])
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StartRefused):
                    return await self.kubelet.prepare_claim(claim)
                await asyncio.sleep(0.1)

    async def burning(self, pod: AdmittedPod, memory: str) -> containers.Container:
        """Its container, with a program that takes so much."""
        writable = [self.agent.scenario_path]
        return await self.kubelet.run_container(pod, "main", burn_command(memory), writable=writable)

    async def remove(self, pod: AdmittedPod) -> None:
        """It is deleted, and the kubelet ends it."""
        self.kubelet.remove(pod)
        await self.place.delete(pod.name)
        if self.mode is Mode.DRA:
            await self.place.client.delete(resources.RESOURCE_CLAIMS.path("default", f"{pod.name}-gpu"))

    async def condition(self, name: str) -> tuple[str, str]:
        found = ((await self.place.pods())[name].get("status") or {}).get("conditions") or ()
        return next(((each["status"], each["reason"]) for each in found if each["type"] == CONDITION), ("", ""))


@contextlib.asynccontextmanager
async def background(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ready(pool: pools.Pool) -> bool:
    found = (await pool.nodes.ListNodes(pool_pb2.ListNodesRequest())).nodes
    return any(node.state == types_pb2.NODE_STATE_READY for node in found)


async def nodes_part(settings: NodeSettings, api: ApiServer) -> None:
    service = await NodeService.open(settings, NODE, api, None)
    await service.run()


@contextlib.asynccontextmanager
async def whole(api: FakeApi, mode: Mode, directory: Path) -> AsyncIterator[Whole]:
    async with contextlib.AsyncExitStack() as stack:
        top = stack.enter_context(subtree("aliquot-kubelet"))
        agent = make_node(directory / "node")
        await asyncio.to_thread(agent.directory.chmod, 0o755)
        agent.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "preload,watchdog"
        stack.enter_context(contextlib.contextmanager(closing)(agent))
        pool = await stack.enter_async_context(pools.running())
        await asyncio.to_thread(agent.start, pool.address)
        await pools.eventually(lambda: ready(pool), "the node is ready")
        client = await stack.enter_async_context(KubeClient(Cluster(api.url, lambda: ADMIN)))
        for name in ("kube-system", "default"):
            await client.post(resources.NAMESPACES.path(), {"metadata": {"name": name}})
        await placing.make_node(client, NODE, 2)
        place = placing.Place(
            client,
            "default",
            Settings(cluster="whole", scheduler="aliquot"),
            pool,
            [NODE],
            account=placing.account_of(client, api),
        )
        await stack.enter_async_context(place.extending())
        await stack.enter_async_context(placing.scheduling(place, api))
        kubelet = Kubelet(directory / "kubelet", f"/{top.name}")
        kubelet.environment = {**simgpu.environment(agent.scenario_path), "PYTHONPATH": ""}
        settings = NodeSettings(
            agent_socket=agent.socket,
            state_dir=directory / "state",
            device_plugins=kubelet.plugins,
            pod_resources=kubelet.pod_resources,
            cgroup_root=hierarchy(),
            kubelet_cgroup_root=kubelet.root,
            cdi_dir=kubelet.cdi,
            mode=mode,
            plugins=kubelet.folder / "plugins",
            plugins_registry=kubelet.registry,
            interval_s=0.2,
        )
        await stack.enter_async_context(contextlib.asynccontextmanager(listening)(kubelet))
        await stack.enter_async_context(background(nodes_part(settings, ApiServer(client))))
        made = Whole(place, agent, kubelet, mode)
        if mode is Mode.DRA:
            await stack.enter_async_context(claiming(made, api))
        else:
            await pools.eventually(lambda: kubelet.allocatable == 200, "its units are there")
        yield made


@contextlib.asynccontextmanager
async def claiming(made: Whole, api: FakeApi) -> AsyncIterator[None]:
    """The node's driver is registered, and its devices are given out."""
    await pools.eventually((made.kubelet.registry / "gpu.aliquot.dev-reg.sock").exists, "the driver is announced")
    await made.kubelet.register_driver()
    parts = made.place.parts
    assert parts is not None
    controller = ClaimController(parts.client, parts.book, parts.requests, parts.teller, again_s=0.2)
    async with background(controller.run(), ClaimScheduler(api).run()):
        yield


@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
async def test_from_a_pod_to_a_container_that_is_held_and_back(mode: Mode) -> None:
    containers.require()
    with tempfile.TemporaryDirectory(prefix="aliquot-kw-") as name:
        directory = Path(name)
        await asyncio.to_thread(directory.chmod, 0o755)
        async with fake_api() as api, whole(api, mode, directory) as made:
            for pod in ("neighbour", "greedy"):
                await made.create(pod)
            neighbour, greedy = [await made.admitted(pod) for pod in ("neighbour", "greedy")]
            kept = await made.burning(neighbour, "3Gi")
            await asyncio.to_thread(wait_for_output, kept.process, b"] holds ")
            refused = await made.burning(greedy, "6Gi")
            answer, _ = await asyncio.to_thread(refused.process.communicate, timeout=60)
            assert b"refused 6Gi" in answer
            for pod in ("neighbour", "greedy"):
                await pools.eventually(lambda pod=pod: told(made, pod), f"{pod} is told which tier holds it")  # type: ignore[misc]
            assert kept.process.poll() is None
            if mode is Mode.CLASSIC:
                await made.place.audit()
            kept.end()
            for admitted in (neighbour, greedy):
                await made.remove(admitted)
            await made.place.settled(0)
            await pools.eventually(lambda: not made.agent.status().slices, "the agent holds nothing any more")


async def told(made: Whole, pod: str) -> bool:
    return await made.condition(pod) == ("True", "Preload")

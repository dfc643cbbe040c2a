"""From a pod that somebody creates to a container that is held, with all that is ours: a scheduler asks the extender or
allocates a claim that the controllers mirror; the coordinator grants, the agent enforces, and the node's part lets a
container start. Then all of it is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot import simgpu
from aliquot.common.cuda import OUT_OF_MEMORY
from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.controllers.claims import ClaimController
from aliquot.kube.core import names
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.objects import CONDITION
from aliquot.kube.node.protos import deviceplugin_pb2, dra_pb2
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import Mode
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.serving import serve
from aliquot.kube.settings import Settings
from aliquot.v1 import pool_pb2, types_pb2
from tests.agent.foreign_cgroups import hierarchy, subtree
from tests.agent.harness import Node, burn_command, closing, make_node, wait_for_output
from tests.certificates import Authority
from tests.coordinator import pool as pools
from tests.kube.claim_scheduler import ClaimScheduler
from tests.kube.conformance import place as placing
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import pod_document
from tests.kube.test_webhook import folder_of, install
from tests.kube_node import containers
from tests.kube_node.conftest import NODE
from tests.kube_node.fake_kubelet import AdmittedPod, Kubelet, StartRefused, listening

pytestmark = pytest.mark.root("to start containers")

MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 418 * MIB
WHOLE_BYTES = (40960 - 622) * MIB
"""What a context costs on the node's cards, and what one has beside what its driver reserves."""

WAYS: dict[str, tuple[dict[str, int], dict[str, str], int]] = {
    "units and memory": ({names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 4096}, {}, 4 * GIB),
    "annotation": ({}, {names.REQUEST: "0.25,4Gi"}, 4 * GIB),
    "whole card": ({names.GPU: 1}, {}, WHOLE_BYTES),
    "memory alone": ({names.GPU_MEMORY_MIB: 4096}, {}, 4 * GIB),
    "NVIDIA's plugin": ({"nvidia.com/gpu": 1}, {}, WHOLE_BYTES),
    "HAMi": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, {}, 3000 * MIB),
    "KAI": ({}, {"gpu-memory": "2000"}, 2000 * MIB),
}
"""What a pod's container and its annotations ask for, and the bytes that it gets then."""

FIRST_CALLS = """
import sys
from aliquot.common.cuda import DriverError
from aliquot.simgpu.cuda import Cuda

cuda, heard = Cuda(0), []
for size in sys.argv[1:]:
    try:
        cuda.allocate(int(size))
        heard.append("got")
    except DriverError as error:
        heard.append(str(error.code))
print("\\nheard", *heard)
"""
"""Asks for these sizes one after another, the first in its first call, and says what became of each."""

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

    async def first_calls(self, pod: AdmittedPod, limit_bytes: int) -> str:
        """What its container hears that asks for a byte more than its limit, for a byte more than a context leaves, and
        for all that it leaves.
        """
        left_bytes = limit_bytes - CONTEXT_BYTES
        sizes = [str(size) for size in (limit_bytes + 1, left_bytes + 1, left_bytes)]
        command = [sys.executable, "-c", FIRST_CALLS, *sizes]
        made = await self.kubelet.run_container(pod, "main", command, writable=[self.agent.scenario_path])
        said, _ = await asyncio.to_thread(made.process.communicate, timeout=60)
        made.end()
        # The library that holds it has a line of its own there, before or after.
        return next(line.removeprefix("heard ") for line in said.decode().splitlines() if line.startswith("heard "))

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
        await agent.join(pool.address)
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
    controller = ClaimController(parts, again_s=0.2)
    async with background(controller.loop.run(), ClaimScheduler(api).run()):
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


@contextlib.asynccontextmanager
async def admitting(made: Whole, api: FakeApi, tls: Path) -> AsyncIterator[None]:
    """The chart's webhooks let pods in, and translate others' words in this namespace."""
    certificate = webhook.Certificate(tls)
    end, port = await serve(webhook.questions(), "127.0.0.1", 0, tls=certificate.context)
    try:
        label = {"metadata": {"labels": {names.TRANSLATE: "true"}}}
        await made.place.client.patch(resources.NAMESPACES.path(name="default"), label, MERGE)
        install(api, port)
        kind = api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
        async with background(webhook.keep(certificate, made.place.client, every_s=0.05)):
            await pools.eventually(lambda: "caBundle" in str(kind.items), "its authority")
            yield
    finally:
        await end()


async def test_whatever_way_a_pod_asks_its_first_byte_over_the_limit_is_refused(authority: Authority) -> None:
    containers.require()
    with tempfile.TemporaryDirectory(prefix="aliquot-kw-") as name:
        directory = Path(name)
        await asyncio.to_thread(directory.chmod, 0o755)
        tls = folder_of(authority, directory / "tls")
        async with fake_api() as api, whole(api, Mode.CLASSIC, directory) as made, admitting(made, api, tls):
            heard = {}
            for number, (way, (limits, annotations, limit_bytes)) in enumerate(WAYS.items()):
                spec = {"schedulerName": "default-scheduler"}
                asking = pod_document(f"pod-{number}", limits, spec=spec, annotations=annotations)
                await made.place.client.post(resources.PODS.path("default"), asking)
                await made.place.bound(f"pod-{number}")
                pod = (await made.place.pods())[f"pod-{number}"]
                # The kubelet asks the node's part before a container starts only where it has units.
                units = int(pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_PERCENT])
                admitted = await made.kubelet.admit(f"pod-{number}", pod["metadata"]["uid"], {"main": units})
                heard[way] = await made.first_calls(admitted, limit_bytes)
                await made.remove(admitted)
                await made.place.settled(0)
            assert heard == dict.fromkeys(WAYS, f"{OUT_OF_MEMORY} {OUT_OF_MEMORY} got")


async def test_whoever_has_a_claim_is_refused_its_first_byte_over_the_limit() -> None:
    containers.require()
    with tempfile.TemporaryDirectory(prefix="aliquot-kw-") as name:
        directory = Path(name)
        await asyncio.to_thread(directory.chmod, 0o755)
        async with fake_api() as api, whole(api, Mode.DRA, directory) as made:
            await made.create("claiming")
            admitted = await made.admitted("claiming")
            assert await made.first_calls(admitted, 4 * GIB) == f"{OUT_OF_MEMORY} {OUT_OF_MEMORY} got"

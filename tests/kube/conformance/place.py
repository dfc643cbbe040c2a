"""A pool of our own on the suite's cluster: a coordinator, the extender, and a stock scheduler that asks it.

On a real cluster the scheduler is a real one, whose program `KUBE_SCHEDULER` names; on the fake one it is
`tests.kube.scheduler`. Nodes are made up: they have capacity, and no kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from aliquot.client import AsyncPool
from aliquot.kube.api import resources
from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names
from aliquot.kube.extender.http import verbs
from aliquot.kube.holding.parts import Parts
from aliquot.kube.serving import serve
from aliquot.kube.settings import Settings
from aliquot.kube.wiring import following, make_extender, make_parts, running
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.coordinator import pool as pools
from tests.identity import ADMIN_TOKEN
from tests.kube.fake_api.server import FakeApi
from tests.kube.making import admitted
from tests.kube.rights import limited, scheduler_config
from tests.kube.scheduler import StockScheduler

PERCENT = 100


@dataclass
class Place:
    """See the module's docstring."""

    client: KubeClient
    namespace: str
    settings: Settings
    pool: pools.Pool
    nodes: list[str]
    port: int = 0
    parts: Parts | None = None
    scheduler: StockScheduler | None = None
    """The stand-in, where there is no real one."""
    account: Cluster = field(kw_only=True)
    """How our parts come to the API server: as the chart's account, where it is the fake one."""

    async def create(self, name: str, limits: dict[str, int], priority_class: str = "", **meta: Any) -> None:
        """A pod, as the webhook lets it in: an API server of elsewhere can't reach one of ours here."""
        written = {key: str(value) for key, value in limits.items()}
        container = {"name": "main", "image": "none", "resources": {"limits": written}}
        spec: dict[str, Any] = {
            "schedulerName": self.settings.scheduler,
            "containers": [container],
            # Where a real cluster leaves its taint on a node that has no kubelet.
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        }
        if priority_class:
            spec["priorityClassName"] = priority_class
        pod = {"metadata": {"name": name, **meta}, "spec": spec}
        await self.client.post(resources.PODS.path(self.namespace), admitted(pod, self.settings.scheduler))

    async def delete(self, name: str) -> None:
        """At once."""
        await self.client.delete(resources.PODS.path(self.namespace, name), {"gracePeriodSeconds": 0})

    async def pods(self) -> dict[str, Any]:
        """As the API server has them."""
        found = msgspec.json.decode(await self.client.get(resources.PODS.path(self.namespace)))["items"]
        return {item["metadata"]["name"]: item for item in found}

    async def bound(self, *wanted: str) -> dict[str, str]:
        """Wait until these are bound; returns where all are."""

        async def done() -> dict[str, str]:
            there = {name: pod["spec"].get("nodeName", "") for name, pod in (await self.pods()).items()}
            return there if all(there.get(name) for name in wanted) else {}

        try:
            found: dict[str, str] = await pools.eventually(done, f"{', '.join(wanted[:4])} bound")
        except AssertionError as error:
            raise AssertionError(f"{error}; {await self.story()}") from None
        return found

    async def story(self) -> str:
        """What somebody wants to know of a test that failed."""
        pods = {
            name: (pod["spec"].get("nodeName"), pod["metadata"].get("deletionTimestamp"))
            for name, pod in (await self.pods()).items()
        }
        leases = [(lease.request.name, lease.state, lease.requeues) for lease in await self.leases()]
        refusals = self.scheduler.refusals if self.scheduler is not None else {}
        return f"pods: {pods}; leases: {leases}; refusals: {refusals}"

    async def settled(self, leases: int) -> None:
        """Wait until so many leases live."""

        async def right() -> bool:
            return len(await self.leases()) == leases

        await pools.eventually(right, f"{leases} leases")

    async def leases(self) -> list[types_pb2.Lease]:
        """Live ones."""
        return list((await self.pool.leases.List(leases_pb2.ListRequest(page_size=1000))).leases)

    async def audit(self) -> None:
        """Pods, leases and devices agree; no device is given away twice, nothing is held for nobody."""
        leases = {lease.lease_id: lease for lease in await self.leases()}
        shares: dict[str, int] = defaultdict(int)
        used = set()
        for name, pod in (await self.pods()).items():
            annotations = pod["metadata"].get("annotations") or {}
            if not pod["spec"].get("nodeName"):
                continue
            said = msgspec.json.decode(annotations[names.ASSIGNMENT])
            lease = leases.get(annotations[names.LEASE_ID])
            assert lease is not None, f"{name} runs under a lease that has ended"
            assert (said["lease"], said["node"]) == (lease.lease_id, pod["spec"]["nodeName"]), name
            assert (lease.lease_id, said["member"]) not in used, f"{name} is somebody's member, too"
            used.add((lease.lease_id, said["member"]))
            held = {(part.device_uuid, part.share_milli) for part in lease.slices if part.member == said["member"]}
            assert {(part["device"], part["share_milli"]) for part in said["slices"]} == held, name
            for part in said["slices"]:
                shares[part["device"]] += part["share_milli"]
        assert all(share <= 1000 for share in shares.values()), dict(shares)
        assert leases.keys() == {lease_id for lease_id, _ in used}, "something is held for nobody"
        for device in (await self.pool.nodes.ListDevices(pool_pb2.ListDevicesRequest(page_size=1000))).devices:
            assert device.leased_share_milli == shares[device.uuid], f"{device.uuid}: books and leases differ"

    @contextlib.asynccontextmanager
    async def extending(self) -> AsyncIterator[None]:
        """The extender runs meanwhile, at the same port each time."""
        async with (
            KubeClient(self.account) as client,
            AsyncPool(self.pool.address, token=ADMIN_TOKEN) as sdk,
        ):
            parts = self.parts = await make_parts(client, sdk, self.settings, "conformance")
            extender, reconciler = make_extender(parts)
            end, self.port = await serve(verbs(extender), "127.0.0.1", self.port)
            try:
                async with running(*following(parts), reconciler.run(), extender.run()):
                    await parts.book.synced.wait()
                    await parts.pods.informer.synced.wait()
                    yield
            finally:
                await end()


def account_of(client: KubeClient, api: FakeApi | None) -> Cluster:
    """As whom our parts come to the suite's cluster."""
    if api is None:
        return client.cluster
    token = limited(api)
    return Cluster(api.url, lambda: token)


async def make_node(client: KubeClient, name: str, devices: int) -> None:
    """A node with so many GPUs, and no kubelet."""
    capacity = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "250",
        names.GPU_PERCENT: str(devices * PERCENT),
        names.GPU_MEMORY_MIB: str(devices * 80 * 1024),
    }
    node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
    await client.post(resources.NODES.path(), node)
    ready = {"type": "Ready", "status": "True", "reason": "Made", "message": "for a test"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    await client.patch(resources.NODES.path(name=name, subresource="status"), {"status": status}, MERGE)


@contextlib.asynccontextmanager
async def place(
    client: KubeClient, namespace: str, api: FakeApi | None, *, nodes: int = 1, devices: int = 1
) -> AsyncIterator[Place]:
    """With everything that runs."""
    tag = uuid.uuid4().hex[:6]
    settings = Settings(cluster=f"conformance-{tag}", scheduler=f"aliquot-{tag}")
    made = [f"conformance-{tag}-{number}" for number in range(nodes)]
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(pools.running())
        declared = [pools.declared(f"machine-of-{name}", devices, "A100-80", name) for name in made]
        await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=declared))
        found = Place(client, namespace, settings, pool, made, account=account_of(client, api))
        for name in made:
            await make_node(client, name, devices)
            stack.push_async_callback(client.delete, resources.NODES.path(name=name))
        async with found.extending():
            pass  # to have a port
        await stack.enter_async_context(scheduling(found, api))
        yield found
        for name in await found.pods():
            await found.delete(name)


@contextlib.asynccontextmanager
async def scheduling(found: Place, api: FakeApi | None) -> AsyncIterator[None]:
    """A scheduler at the extender's port."""
    url = f"http://127.0.0.1:{found.port}"
    if api is not None:
        async with StockScheduler(api, url, found.settings.scheduler) as scheduler:
            found.scheduler = scheduler
            task = asyncio.create_task(scheduler.run(preempts=True))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return
    with tempfile.TemporaryDirectory() as folder, real_scheduler(Path(folder), url, found.settings.scheduler):
        yield


@contextlib.contextmanager
def real_scheduler(folder: Path, url: str, name: str) -> Iterator[None]:
    """The program that `KUBE_SCHEDULER` names, with the chart's configuration as far as the place allows."""
    config = scheduler_config()
    config |= {
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": os.environ["KUBECONFIG"], "qps": 500, "burst": 1000},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": name}],
    }
    config["extenders"][0]["urlPrefix"] = url
    path = folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        command = [os.environ["KUBE_SCHEDULER"], f"--config={path}", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

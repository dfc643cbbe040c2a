"""A cluster for tests: the fake API server, a real coordinator, our real parts, a scheduler as the stock one.

And the auditor: after everything, pods, leases and devices must agree.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aliquot.client import AsyncPool
from aliquot.common.clock import Clock
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.extender.http import verbs
from aliquot.kube.extender.scheduling import Extender
from aliquot.kube.holding.parts import Parts
from aliquot.kube.serving import serve
from aliquot.kube.settings import Settings
from aliquot.kube.wiring import following, make_extender, make_parts, running
from aliquot.v1 import pool_pb2, types_pb2
from tests.coordinator import pool as pools
from tests.identity import ADMIN_TOKEN
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import make_namespace, make_node
from tests.kube.rights import limited
from tests.kube.scheduler import StockScheduler

CLUSTER = "test-cluster"


def id_of(node: str) -> str:
    """The pool's id of a node that was declared by this name."""
    return f"machine-of-{node}"


@dataclass
class Running:
    """One extender process, as far as this process runs its parts."""

    parts: Parts
    extender: Extender
    url: str
    _stack: contextlib.AsyncExitStack

    async def stop(self) -> None:
        """As a signal would."""
        await self._stack.aclose()


@dataclass
class KubeCluster:
    """See the module's docstring."""

    api: FakeApi
    pool: pools.Pool
    settings: Settings
    extenders: list[Running] = field(default_factory=list)
    port: int = 0
    token: str = ADMIN
    """As whom extenders that are started from now on come to the API server: the chart's account."""

    async def declare(
        self, count: int, *, devices: int = 1, prefix: str = "node", model: str = "A100-80", sums: bool = False
    ) -> None:
        """Nodes of both: of the pool, agentless, and of Kubernetes. Ids are not names, as with every real agent."""
        for begin in range(0, count, 500):
            some = range(begin, min(count, begin + 500))
            nodes = [
                pools.declared(id_of(f"{prefix}-{number}"), devices, model, f"{prefix}-{number}") for number in some
            ]
            await self.pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=nodes))
            for number in some:
                offers = {names.GPU_PERCENT: devices * 100, names.GPU_MEMORY_MIB: devices * 80 * 1024} if sums else None
                make_node(self.api, f"{prefix}-{number}", offers)

    async def start_extender(self) -> Running:
        """One more; at the same port as the one before, if that has stopped."""
        stack = contextlib.AsyncExitStack()
        client = await stack.enter_async_context(KubeClient(Cluster(self.api.url, lambda: self.token), timeout_s=5.0))
        sdk = await stack.enter_async_context(AsyncPool(self.pool.address, token=ADMIN_TOKEN))
        parts = await make_parts(client, sdk, self.settings, "test")
        extender, reconciler = make_extender(parts)
        end, self.port = await serve(verbs(extender), "127.0.0.1", self.port)
        stack.push_async_callback(end)
        await stack.enter_async_context(running(*following(parts), reconciler.run(), extender.run()))
        await parts.book.synced.wait()
        await parts.pods.informer.synced.wait()
        made = Running(parts, extender, f"http://127.0.0.1:{self.port}", stack)
        self.extenders.append(made)
        return made

    @property
    def extender(self) -> Running:
        """The last one."""
        return self.extenders[-1]

    def pod(self, name: str, namespace: str = "default") -> Any:
        """As the API server has it."""
        return self.api.pods.items.get((namespace, name))

    def node_of(self, name: str, namespace: str = "default") -> str:
        """Where it is bound; empty: it is not."""
        pod = self.pod(name, namespace)
        return pod["spec"].get("nodeName", "") if pod else ""

    def assignment(self, name: str, namespace: str = "default") -> Any:
        """What its annotation says."""
        return msgspec.json.decode(self.pod(name, namespace)["metadata"]["annotations"][names.ASSIGNMENT])

    async def leases(self) -> list[types_pb2.Lease]:
        """Live ones of this cluster."""
        from aliquot.v1 import leases_pb2

        found = (await self.pool.leases.List(leases_pb2.ListRequest(page_size=1000))).leases
        return [lease for lease in found if lease.request.labels.get(names.LEASE_CLUSTER) == CLUSTER]

    async def settled(self, leases: int, what: str = "") -> None:
        """Until so many leases live."""

        async def right() -> bool:
            return len(await self.leases()) == leases

        await pools.eventually(right, what or f"{leases} leases")

    def events(self) -> dict[str, str]:
        """Of pods: the message by reason."""
        items = self.api.store.kind("v1", "events").items.values()
        return {item["reason"]: item["message"] for item in items}


@contextlib.asynccontextmanager
async def kube_cluster(
    nodes: int = 1,
    *,
    devices: int = 1,
    settings: Settings | None = None,
    pool_settings: Any = None,
    clock: Clock | None = None,
    sums: bool = False,
) -> AsyncIterator[KubeCluster]:
    """With one extender that runs. With `sums` nodes say what they offer, by which a scheduler counts."""
    async with fake_api() as api, pools.running(pool_settings, clock=clock) as pool:
        make_namespace(api, "kube-system")
        make_namespace(api, "default")
        cluster = KubeCluster(api, pool, settings or Settings(cluster=CLUSTER), token=limited(api))
        await cluster.declare(nodes, devices=devices, sums=sums)
        await cluster.start_extender()
        try:
            yield cluster
        finally:
            for extender in cluster.extenders:
                await extender.stop()


@contextlib.asynccontextmanager
async def scheduling(
    cluster: KubeCluster, *, loop: bool = False, preempts: bool = False
) -> AsyncIterator[StockScheduler]:
    """A scheduler at the extender; `loop`: it schedules by itself, and where it `preempts` evicts, too."""
    async with StockScheduler(cluster.api, cluster.extender.url) as scheduler:
        task = asyncio.create_task(scheduler.run(preempts=preempts)) if loop or preempts else None
        try:
            yield scheduler
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


IMPATIENT = Patience(unbound_ms=0, gang_ms=0)


async def audit(cluster: KubeCluster, *, unbound: Sequence[str] = ()) -> None:
    """Pods, leases and devices agree: nothing is booked twice, nothing is held for nobody.

    `unbound` names gangs whose lease may be without pods at the moment.
    """
    leases = {lease.lease_id: lease for lease in await cluster.leases()}
    used: dict[str, set[int]] = defaultdict(set)
    shares: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    for (namespace, name), pod in cluster.api.pods.items.items():
        annotations = pod["metadata"].get("annotations") or {}
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in {"Succeeded", "Failed"}:
            continue
        if names.LEASE_ID not in annotations:
            continue
        where = f"{namespace}/{name}"
        lease = leases.get(annotations[names.LEASE_ID])
        assert lease is not None, f"{where} runs under {annotations[names.LEASE_ID]}, which has ended"
        said = msgspec.json.decode(annotations[names.ASSIGNMENT])
        assert said["lease"] == lease.lease_id
        assert said["node"] == pod["spec"]["nodeName"], where
        assert said["member"] not in used[lease.lease_id], f"two pods are member {said['member']} of {lease.lease_id}"
        used[lease.lease_id].add(said["member"])
        held = {
            (part.device_uuid, part.share_milli, part.memory_bytes)
            for part in lease.slices
            if part.member == said["member"]
        }
        assert {(part["device"], part["share_milli"], part["memory_bytes"]) for part in said["slices"]} == held, where
        for part in said["slices"]:
            shares[part["device"]] += part["share_milli"]
            memory[part["device"]] += part["memory_bytes"]
    assert all(share <= 1000 for share in shares.values()), f"booked twice: {dict(shares)}"
    ghosts = [
        lease.request.name
        for lease_id, lease in leases.items()
        if lease_id not in used and lease.request.labels.get(names.LEASE_GANG) not in unbound
    ]
    assert not ghosts, f"held for nobody: {ghosts}"
    listed = (await cluster.pool.nodes.ListDevices(pool_pb2.ListDevicesRequest(page_size=1000))).devices
    for device in listed:
        whole = sum(
            part.share_milli for lease in leases.values() for part in lease.slices if part.device_uuid == device.uuid
        )
        assert device.leased_share_milli == whole, f"{device.uuid}: {device.leased_share_milli} leased, {whole} known"
        assert memory[device.uuid] <= device.memory_total_bytes - device.memory_reserved_bytes

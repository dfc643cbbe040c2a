"""A pool whose cards are shared and measured, and our process that autoscalers ask, on the fake API server."""

from __future__ import annotations

import base64
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aliquot.client import AsyncPool
from aliquot.common.duration import DurationMs
from aliquot.coordinator.settings.config import AgentSettings
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, EXTERNAL, VERSIONS
from aliquot.kube.scaling.serving import Scaling
from aliquot.kube.settings import Settings
from aliquot.kube.wiring import now_ms, running
from aliquot.v1 import agent_pb2
from tests.certificates import Authority
from tests.coordinator import pool as pools
from tests.identity import ADMIN_TOKEN
from tests.kube.cluster import CLUSTER, KubeCluster, kube_cluster, scheduling
from tests.kube.fake_api.aggregation import VERSION, aggregation, api_service
from tests.kube.fake_api.server import ADMIN
from tests.kube.making import make_node, make_pod, set_phase

NAMESPACE = "aliquot-system"
SERVICE = (NAMESPACE, "aliquot-scaling")


class Card(pools.Agent):
    """The agent of a node with shared cards; says what each slice uses."""

    async def measure(self, **use: tuple[int, int]) -> None:
        """Percent of the device's time and bytes, by slice."""
        by_device: dict[str, list[agent_pb2.SliceUse]] = {}
        for slice_id, (percent, used) in use.items():
            device = self.reservations[slice_id].device_uuid
            one = agent_pb2.SliceUse(
                slice_id=slice_id, observed_bytes=used, processes=1, gpu_utilisation_percent=percent
            )
            by_device.setdefault(device, []).append(one)
        await self.delta(
            *(agent_pb2.DeviceReport(uuid=uuid, healthy=True, slices=slices) for uuid, slices in by_device.items())
        )


@dataclass
class Place:
    """See the module's docstring."""

    cluster: KubeCluster
    card: Card
    scaling: Scaling
    authority: Authority
    client: KubeClient
    """Of the administrator."""

    @property
    def keda(self) -> str:
        """Where the scaler is."""
        return f"127.0.0.1:{self.scaling.keda_port}"

    async def pod(self, name: str, percent: int = 25, *, owner: str = "", **fields: Any) -> None:
        """One that runs, with so much of a card."""
        if owner:
            fields["labels"] = {"app": owner, "pod-template-hash": "abc", **fields.get("labels", {})}
            owners = {"kind": "ReplicaSet", "name": f"{owner}-abc", "uid": "1", "controller": True, "apiVersion": "v1"}
            fields["ownerReferences"] = [owners]
        make_pod(self.cluster.api, name, {names.GPU_PERCENT: percent}, **fields)
        namespace = fields.get("namespace", "default")
        await pools.eventually(lambda: self.cluster.node_of(name, namespace), f"{name} bound")
        set_phase(self.cluster.api, name, "Running", namespace)

    async def slices(self, name: str, namespace: str = "default") -> list[str]:
        """Of a pod's lease, once they are active."""
        annotations = self.cluster.pod(name, namespace)["metadata"]["annotations"]
        lease = await self.cluster.pool.get(annotations[names.LEASE_ID])
        found = [part.slice_id for part in lease.slices]
        await pools.eventually(lambda: all(one in self.card.reservations for one in found), f"{name}'s slices")
        return found

    async def uses(self, **percent: int) -> None:
        """Pods' programs use so much of their devices' time, and our process has heard of it."""
        use = {slice_id: (value, 1 << 30) for pod, value in percent.items() for slice_id in await self.slices(pod)}
        await self.card.measure(**use)

        async def heard() -> bool:
            await self.scaling.follower.look()
            parts = [part for lease in self.scaling.follower.picture().leases.values() for part in lease.parts.items()]
            known = {slice_id: part.utilisation_percent for slice_id, part in parts}
            return all(known.get(slice_id) == value for slice_id, (value, _) in use.items())

        await pools.eventually(heard, f"{percent} heard of")

    async def get(self, path: str, token: str = ADMIN, **params: str) -> Any:
        """Through the API server."""
        async with KubeClient(Cluster(self.cluster.api.url, lambda: token), timeout_s=20.0) as client:
            return msgspec.json.decode(await client.get(path, params))

    async def metrics(self, metric: str, namespace: str = "default", *, version: str = "v1beta2", **params: str) -> Any:
        """Of all pods: values by name."""
        path = f"/apis/{CUSTOM}/{version}/namespaces/{namespace}/pods/%2A/{metric}"
        found = await self.get(path, **params)
        return {item["describedObject"]["name"]: item["value"] for item in found["items"]}


def certified(authority: Authority, folder: Path) -> Path:
    """A folder as Secrets of type kubernetes.io/tls are mounted."""
    folder.mkdir(exist_ok=True)
    certificate, key = authority.certify("localhost")
    shutil.copy(certificate, folder / "tls.crt")
    shutil.copy(key, folder / "tls.key")
    shutil.copy(authority.ca, folder / "ca.crt")
    return folder


def settings_for(folder: Path, **fields: Any) -> Settings:
    """On the loopback, at free ports."""
    given: dict[str, Any] = {
        "scaling_apis": (CUSTOM, EXTERNAL),
        "scaling_every": DurationMs(200),
        "cluster": CLUSTER,
        "scaling_host": "localhost",
        "scaling_metrics_port": 0,
        "scaling_keda_port": 0,
        "scaling_tls": folder,
    }
    return Settings(**{**given, **fields})


def register(cluster: KubeCluster, authority: Authority, groups: tuple[str, ...] = (CUSTOM, EXTERNAL)) -> None:
    """The front proxy, and APIServices as the chart has them."""
    cluster.api.aggregation = aggregation(cluster.api.store, authority)
    for group in groups:
        for version in VERSIONS[group]:
            item = api_service(group, version, *SERVICE)
            cluster.api.store.create(cluster.api.store.kind(VERSION, "apiservices"), "", item)


@contextlib.asynccontextmanager
async def scaled(authority: Authority, folder: Path, *, cards: int = 2, **fields: Any) -> AsyncIterator[Place]:
    """With a scheduler that schedules by itself, and a node of cards."""
    settings = settings_for(certified(authority, folder / "tls"), **fields)
    async with contextlib.AsyncExitStack() as stack:
        # A card that tests leave alone for a while, on a machine with other work, is not silent.
        patient = AgentSettings(unenrolled=True, heartbeat=DurationMs(120_000))
        of_pool = pools.settings_for(agents=patient, forecast=True)
        cluster = await stack.enter_async_context(kube_cluster(0, settings=settings, pool_settings=of_pool))
        uuids = tuple(f"GPU-{number}" for number in range(cards))
        card = Card(cluster.pool.address, "gpu-0", uuids=uuids)
        await stack.enter_async_context(pools.agents(card))
        make_node(cluster.api, "gpu-0")
        register(cluster, authority)
        await stack.enter_async_context(scheduling(cluster, loop=True))
        client = await stack.enter_async_context(KubeClient(Cluster(cluster.api.url, lambda: ADMIN)))
        scaling = await stack.enter_async_context(serving(cluster, client, settings))
        yield Place(cluster, card, scaling, authority, client)


@contextlib.asynccontextmanager
async def serving(cluster: KubeCluster, client: KubeClient, settings: Settings) -> AsyncIterator[Scaling]:
    """One process of ours, as far as this process runs its parts, that has looked at the pool once."""
    async with AsyncPool(cluster.pool.address, token=ADMIN_TOKEN, timeout_s=3.0) as sdk:
        scaling = Scaling(client, sdk, CLUSTER, settings, NAMESPACE, now_ms, look_s=0.1)
        try:
            await scaling.start()
            if cluster.api.aggregation is not None:
                cluster.api.aggregation.services[SERVICE] = f"https://localhost:{scaling.metrics_port}"
            async with running(*scaling.work()):
                await pools.eventually(lambda: not scaling.ready(), "the first picture")
                await pools.eventually(lambda: trusted(cluster, settings), "the certificate trusted")
                yield scaling
        finally:
            await scaling.stop()


def trusted(cluster: KubeCluster, settings: Settings) -> bool:
    """Whether the API server has been told whose certificates ours are of."""
    wanted = base64.b64encode((settings.scaling_tls / "ca.crt").read_bytes()).decode()
    items = cluster.api.store.kind(VERSION, "apiservices").items.values()
    ours = [item for item in items if item["spec"]["service"]["name"] == SERVICE[1]]
    return all(item["spec"].get("caBundle") == wanted for item in ours)

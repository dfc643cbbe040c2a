"""`aliquot-kube scaling` as it is started in a cluster."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import grpc
import grpc.aio

from aliquot.kube.core.scaling.metrics_documents import CUSTOM
from aliquot.kube.core.scaling.signals import Signal
from aliquot.kube.core.scaling.usage import GPU_USE
from tests.certificates import Authority
from tests.coordinator.pool import eventually
from tests.identity import ADMIN_TOKEN
from tests.kube.cluster import CLUSTER, KubeCluster, kube_cluster
from tests.kube.fake_api.aggregation import VERSION
from tests.kube.scaling.keda import Keda
from tests.kube.scaling.place import NAMESPACE, SERVICE, certified, register
from tests.kube.test_command import kubeconfig


def environment(cluster: KubeCluster, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "ALIQUOT_COORDINATOR": cluster.pool.address,
        "ALIQUOT_TOKEN": ADMIN_TOKEN,
        "ALIQUOT_KUBE_NAMESPACE": NAMESPACE,
        "ALIQUOT_KUBE_CLUSTER": CLUSTER,
        "ALIQUOT_KUBE_SCALING_HOST": "localhost",
        "ALIQUOT_KUBE_SCALING_METRICS_PORT": "0",
        "ALIQUOT_KUBE_SCALING_KEDA_PORT": "0",
        "ALIQUOT_KUBE_SCALING_TLS": str(folder),
        "ALIQUOT_KUBE_SCALING_EVERY": "200ms",
    }


async def start(cluster: KubeCluster, authority: Authority, folder: Path) -> asyncio.subprocess.Process:
    config = kubeconfig(folder / "config", cluster.api.url)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.kube.program", "scaling", "--kubeconfig", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(cluster, certified(authority, folder / "tls")),
    )


async def test_it_serves_both_ways_and_ends_in_order(authority: Authority, tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        register(cluster, authority, (CUSTOM,))
        process = await start(cluster, authority, tmp_path)
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("ready "), line
        ports = {name: text.split('"')[0] for name in ("metrics", "keda") for text in [line.split(f'"{name}": "')[1]]}
        assert cluster.api.aggregation is not None
        cluster.api.aggregation.services[SERVICE] = f"https://{ports['metrics']}"
        items = cluster.api.store.kind(VERSION, "apiservices").items
        await eventually(
            lambda: all(item["spec"].get("caBundle") for item in items.values()), "the certificate trusted"
        )
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        async with grpc.aio.secure_channel(ports["keda"], credentials) as channel:
            keda = Keda(channel, metric=Signal.QUEUE_DEPTH, target="1")
            assert await keda.spec() == (Signal.QUEUE_DEPTH, 1.0)

            async def answered() -> bool:
                try:
                    return await keda.value() == 0.0
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    return False

            await eventually(answered, "the first picture")
        path = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/*/{GPU_USE}"
        found = await cluster.extender.parts.client.get(path)
        assert b'"items":[]' in found
        process.terminate()
        assert await process.wait() == 0


async def test_it_does_not_start_beside_another_owner(authority: Authority, tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        register(cluster, authority, (CUSTOM,))
        kind = cluster.api.store.kind(VERSION, "apiservices")
        item = kind.items["", f"v1beta1.{CUSTOM}"]
        theirs = {"namespace": "monitoring", "name": "prometheus-adapter"}
        cluster.api.store.write(
            kind, ("", f"v1beta1.{CUSTOM}"), {**item, "spec": {**item["spec"], "service": theirs}}, "MODIFIED"
        )
        process = await start(cluster, authority, tmp_path)
        _, said = await process.communicate()
        assert process.returncode == 1
        assert b"monitoring/prometheus-adapter, and we are aliquot-system/aliquot-scaling" in said
        assert b"scale by KEDA" in said

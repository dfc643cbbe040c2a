"""An ordinary ResourceQuota refuses the pod that would pass it, whatever way that pod asks; by the webhook over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeForbidden
from aliquot.kube.core import names
from aliquot.kube.serving import serve
from tests.certificates import Authority
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import delete_pod, make_namespace, make_pod, pod_document, set_phase
from tests.kube.test_webhook import PATH, folder_of, install

PERCENT = f"requests.{names.GPU_PERCENT}"
MEMORY = f"requests.{names.GPU_MEMORY_MIB}"


@contextlib.asynccontextmanager
async def admitting(authority: Authority, folder: Path) -> AsyncIterator[tuple[FakeApi, KubeClient]]:
    """An API server that asks our webhook about pods, in a namespace where other systems' words are translated."""
    certificate = webhook.Certificate(folder_of(authority, folder / "tls"))
    end, port = await serve(webhook.questions(replica_percent=25), "127.0.0.1", 0, tls=certificate.context)
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        make_namespace(api, "default", **{names.TRANSLATE: "true"})
        install(api, port)
        await webhook.trust(client, authority.ca.read_bytes())
        yield api, client
        await end()


def quota(api: FakeApi, **hard: Any) -> None:
    item = {"metadata": {"name": "gpus"}, "spec": {"hard": {key: str(value) for key, value in hard.items()}}}
    api.store.create(api.store.kind("v1", "resourcequotas"), "default", item)


def asking(limits: dict[str, int] | None = None, request: str = "", **annotations: str) -> dict[str, Any]:
    said = {key.replace("_", "-"): value for key, value in annotations.items()}
    return {"limits": limits, "annotations": said | ({names.REQUEST: request} if request else {})}


WAYS: list[tuple[str, dict[str, Any], int, int]] = [
    ("percent", asking({names.GPU_PERCENT: 25}), 25, 0),
    ("percent and memory", asking({names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 8192}), 25, 8192),
    ("memory", asking({names.GPU_MEMORY_MIB: 8192}), 1, 8192),
    ("whole cards", asking({names.GPU: 2}), 200, 0),
    ("annotation, a share", asking(request="0.25(A100),10Gi"), 25, 10240),
    ("annotation, whole cards", asking(request="2"), 200, 0),
    ("annotation, parts of several", asking(request="2x0.25,4Gi"), 50, 8192),
    ("annotation, memory", asking(request="10Gi"), 1, 10240),
    ("annotation, a MIG instance", asking(request="3g.40gb"), 42, 0),
    ("annotation beside percent", asking({names.GPU_PERCENT: 12}, "0.125,2Gi"), 12, 2048),
    ("NVIDIA's words", asking({"nvidia.com/gpu": 2}), 200, 0),
    ("NVIDIA's, MIG", asking({"nvidia.com/mig-1g.10gb": 2}), 28, 0),
    ("NVIDIA's, time-slicing", asking({"nvidia.com/gpu.shared": 1}), 25, 0),
    ("AMD's words", asking({"amd.com/gpu": 1}), 100, 0),
    ("HAMi's words", asking({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}), 30, 3000),
    ("KAI's words", asking(gpu_fraction="0.5"), 50, 0),
    ("KAI's, memory", asking(gpu_memory="2000"), 1, 2000),
]


@pytest.mark.parametrize(("ask", "percent", "memory_mib"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
async def test_a_quota_refuses_the_pod_that_would_pass_it(
    ask: dict[str, Any], percent: int, memory_mib: int, authority: Authority, tmp_path: Path
) -> None:
    """In each of its two resources by itself: the first pod is all that there may be, and room comes with its end."""
    hard = {PERCENT: percent, **({MEMORY: memory_mib} if memory_mib else {})}
    async with admitting(authority, tmp_path) as (api, client):
        for resource, amount in hard.items():
            quota(api, **{resource: amount})
            await client.post(PATH, pod_document("first", **ask))
            with pytest.raises(KubeForbidden) as caught:
                await client.post(PATH, pod_document("second", **ask))
            assert (
                f'pods "second" is forbidden: exceeded quota: gpus, requested: {resource}={amount}, '
                f"used: {resource}={amount}, limited: {resource}={amount}"
            ) in caught.value.message
            assert not caught.value.lacks_right, "nobody's role is at fault"
            set_phase(api, "first", "Succeeded")
            await client.post(PATH, pod_document("second", **ask))
            for name in ("first", "second"):
                delete_pod(api, name)
            await client.delete("/api/v1/namespaces/default/resourcequotas/gpus")


async def test_a_quota_is_held_across_ways_and_by_what_kubernetes_makes_of_containers(
    authority: Authority, tmp_path: Path
) -> None:
    """Units on sidecars and on those that run first add nothing to what the pod has asked for."""
    async with admitting(authority, tmp_path) as (api, client):
        quota(api, **{PERCENT: 100})
        several = {
            "containers": [{"name": "main"}, {"name": "beside"}],
            "initContainers": [{"name": "before"}, {"name": "along", "restartPolicy": "Always"}],
        }
        await client.post(PATH, pod_document("half", annotations={names.REQUEST: "0.5"}, spec=several))
        await client.post(PATH, pod_document("limits", {names.GPU_PERCENT: 30}))
        await client.post(PATH, pod_document("theirs", annotations={"gpu-fraction": "0.2"}))
        await client.post(PATH, pod_document("none"))
        for last in (asking({names.GPU_PERCENT: 1}), asking({names.GPU_MEMORY_MIB: 1}), asking(request="1Gi")):
            with pytest.raises(KubeForbidden, match=f"used: {PERCENT}=100, limited: {PERCENT}=100"):
                await client.post(PATH, pod_document("last", **last))
        assert {name for _, name in api.pods.items} == {"half", "limits", "theirs", "none"}


async def test_a_quota_is_of_its_namespace_and_a_dry_run_is_refused_and_charged_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    async with admitting(authority, tmp_path) as (api, client):
        make_namespace(api, "other")
        quota(api, **{PERCENT: 25})
        quarter = pod_document("a", {names.GPU_PERCENT: 25})
        for _ in range(2):
            await client.post(PATH, quarter, dry_run=True)
        await client.post(resources.PODS.path("other"), pod_document("a", {names.GPU: 1}))
        await client.post(PATH, quarter)
        with pytest.raises(KubeForbidden, match="exceeded quota"):
            await client.post(PATH, {**quarter, "metadata": {"name": "b"}}, dry_run=True)


async def test_what_the_webhook_does_not_see_no_quota_counts(authority: Authority, tmp_path: Path) -> None:
    """Why such a pod is not placed: see `test_a_pod_that_was_not_counted_for_what_it_asks_gets_nothing`."""
    async with admitting(authority, tmp_path) as (api, _):
        quota(api, **{PERCENT: 0})
        make_pod(api, "slipped", annotations={names.REQUEST: "1"}, admit=False)

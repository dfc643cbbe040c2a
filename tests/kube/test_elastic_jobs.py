"""ElasticJobs follow their elastic lease: they wait, start, grow, shrink, restart, succeed and end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from aliquot.common.request import format_request
from aliquot.kube.controllers.elastic_jobs import ElasticJobController
from aliquot.kube.core import elastic_jobs, names
from tests.coordinator.pool import Agent, agents, eventually
from tests.kube.cluster import KubeCluster, audit, kube_cluster, scheduling
from tests.kube.fake_api.store import ApiFailure
from tests.kube.making import delete_pod, make_node, set_phase

VERSION = "aliquot.dev/v1alpha1"
CRDS = Path(__file__).parents[2] / "deploy" / "kube" / "crds.yaml"


@contextlib.asynccontextmanager
async def operator(nodes: int, rest_s: float = 0.2) -> AsyncIterator[KubeCluster]:
    """Nodes with an agent and a GPU each, the operator, and a scheduler that works by itself."""
    async with kube_cluster(0) as cluster:
        for document in yaml.safe_load_all(CRDS.read_text()):
            for version in document["spec"]["versions"]:
                plural, kind = document["spec"]["names"]["plural"], document["spec"]["names"]["kind"]
                cluster.api.store.serve(f"{document['spec']['group']}/{version['name']}", plural, kind)
        several = [Agent(cluster.pool.address, f"node-{number}") for number in range(nodes)]
        for number in range(nodes):
            make_node(cluster.api, f"node-{number}")
        parts = cluster.extender.parts
        made = ElasticJobController(parts, names.SCHEDULER, rest_s=rest_s)
        async with agents(*several), scheduling(cluster, loop=True):
            running = asyncio.create_task(made.loop.run())
            try:
                yield cluster
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def make_job(
    cluster: KubeCluster, name: str, least: int, most: int, annotations: dict[str, str] | None = None, **spec: Any
) -> Any:
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "none", "env": [{"name": "MASTER_PORT", "value": "1"}]}]},
    }
    job = {
        "metadata": {"name": name},
        "spec": {"scaling": {"minReplicas": least, "maxReplicas": most}, "template": template, **spec},
    }
    return cluster.api.store.create(cluster.api.store.kind(VERSION, "elasticjobs"), "default", job)


def status(cluster: KubeCluster, name: str) -> dict[str, Any]:
    found = cluster.api.store.kind(VERSION, "elasticjobs").items["default", name]
    return dict(found.get("status") or {})


def pods_of(cluster: KubeCluster, name: str) -> list[str]:
    """Those that are bound and not being deleted."""
    return sorted(
        key[1]
        for key, pod in cluster.api.pods.items.items()
        if key[1].startswith(f"{name}-") and pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    )


def let_go(cluster: KubeCluster) -> bool:
    """Kubelets end what is being deleted; always true."""
    for (_, name), pod in list(cluster.api.pods.items.items()):
        if "deletionTimestamp" in pod["metadata"]:
            delete_pod(cluster.api, name)
    return True


async def bound(cluster: KubeCluster, name: str, count: int) -> None:
    await eventually(lambda: let_go(cluster) and len(pods_of(cluster, name)) == count, f"{count} pods of {name}")


async def test_it_grows_into_what_is_idle_and_gives_it_back_to_others() -> None:
    async with operator(3) as cluster:
        make_job(cluster, "a", 1, 3)
        await bound(cluster, "a", 1)
        await bound(cluster, "a", 3)
        await audit(cluster)
        pod = cluster.pod("a-0")
        found = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        assert (found["PET_NNODES"], found["MASTER_PORT"]) == ("1:3", "1")
        assert found["PET_RDZV_ENDPOINT"] == "a-0.a.default.svc:29500"
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {names.GPU_PERCENT: "100"}
        make_job(cluster, "b", 2, 2)
        await bound(cluster, "b", 2)
        await bound(cluster, "a", 1)
        await eventually(lambda: status(cluster, "a").get("replicas") == 1, "its status")
        await eventually(lambda: _clean(cluster), "the books")


async def _clean(cluster: KubeCluster) -> bool:
    try:
        await audit(cluster)
    except AssertionError:
        return False
    return True


async def test_it_waits_in_the_pools_queue_and_ends_with_its_pods() -> None:
    async with operator(1) as cluster:
        make_job(cluster, "first", 1, 1)
        await bound(cluster, "first", 1)
        make_job(cluster, "second", 1, 1)
        await eventually(lambda: status(cluster, "second").get("phase") == "Waiting", "its turn")
        (name,) = pods_of(cluster, "first")
        set_phase(cluster.api, name, "Succeeded")
        await eventually(lambda: status(cluster, "first").get("phase") == "Succeeded", "its end")
        await bound(cluster, "second", 1)


async def test_a_pod_that_fails_is_made_again_so_often() -> None:
    async with operator(1) as cluster:
        make_job(cluster, "a", 1, 1, maxRestarts=1)
        await bound(cluster, "a", 1)
        uid = cluster.pod("a-0")["metadata"]["uid"]
        set_phase(cluster.api, "a-0", "Failed")

        def again() -> bool:
            return any(cluster.pod(name)["metadata"]["uid"] != uid for name in pods_of(cluster, "a"))

        await eventually(again, "another pod")
        (name,) = [name for name in pods_of(cluster, "a") if cluster.pod(name)["metadata"]["uid"] != uid]
        set_phase(cluster.api, name, "Failed")
        await eventually(lambda: status(cluster, "a").get("phase") == "Failed", "its end")
        await cluster.settled(0)


async def test_a_job_that_is_deleted_lets_go() -> None:
    async with operator(2) as cluster:
        make_job(cluster, "a", 2, 2)
        await bound(cluster, "a", 2)
        cluster.api.store.remove(cluster.api.store.kind(VERSION, "elasticjobs"), ("default", "a"))
        await cluster.settled(0)
        await bound(cluster, "a", 0)


async def test_an_impossible_job_is_told_so() -> None:
    async with operator(1) as cluster:
        make_job(cluster, "a", 2, 2, gpu="0.5(H100)")
        await eventually(lambda: status(cluster, "a").get("phase") == "Failed", "its end")
        assert not cluster.api.pods.items


async def test_replicas_share_a_card_where_their_template_says_that_they_may() -> None:
    async with operator(2) as cluster:
        make_job(cluster, "apart", 2, 2, gpu="0.25")
        make_job(cluster, "together", 2, 2, {"aliquot.dev/same-card": "true"}, gpu="0.25")
        for name, cards in (("apart", 2), ("together", 1)):
            await bound(cluster, name, 2)
            (lease,) = [each for each in await cluster.leases() if each.request.name == f"default/{name}"]
            assert len({piece.device_uuid for piece in lease.slices}) == cards


async def test_what_may_not_be_made_is_told_and_holds_nothing() -> None:
    """A right that the account lacks, of the service or of the pods: no lease is asked for before they could be."""
    async with operator(2) as cluster:
        for what in ("services", "pods"):
            cluster.api.faults.forbidden = {("create", what)}
            make_job(cluster, what, 1, 1)
            await eventually(lambda what=what: status(cluster, what).get("phase") == "Waiting", "word of it")  # type: ignore[misc]
            assert f'cannot create resource "{what}"' in status(cluster, what)["message"]
            await eventually(lambda what=what: what in cluster.events().get("Waiting", ""), "an event")  # type: ignore[misc]
            assert not await cluster.leases()
        cluster.api.faults.forbidden = set()
        await bound(cluster, "services", 1)


async def test_a_lease_whose_pods_are_refused_later_is_given_back() -> None:
    """As by a quota, which a dry run is not charged to."""
    async with operator(1) as cluster:
        kind = cluster.api.pods

        def quota(operation: str, of: Any, new: Any, old: Any, user: str) -> None:
            if of is kind and operation == "CREATE" and len(cluster.extender.parts.book):
                raise ApiFailure(403, "Forbidden", f"pods {new['metadata']['name']} is forbidden: exceeded quota")

        cluster.api.store.admission.append(quota)
        make_job(cluster, "a", 1, 1)
        await eventually(lambda: "exceeded quota" in status(cluster, "a").get("message", ""), "word of it")
        await cluster.settled(0)
        cluster.api.store.admission.remove(quota)
        await bound(cluster, "a", 1)


def test_a_job_written_for_another_group_is_taken_once_it_names_ours() -> None:
    """By the kind's own schema, as the API server would; `docs/kubernetes.md` promises it."""
    theirs = yaml.safe_load("""
        apiVersion: ai.example.com/v1
        kind: ElasticJob
        metadata: {name: llm-training, namespace: training}
        spec:
          pool: gpu-pool
          priority: 100
          preemptible: true
          scaling: {minReplicas: 4, maxReplicas: 16, gpuPerReplica: 8}
          template:
            spec:
              containers:
              - name: trainer
                image: pytorch/pytorch
                command: [torchrun, --nnodes=4:16, --rdzv_endpoint=$(MASTER_ADDR):29500, train.py]
                env: [{name: MASTER_PORT, value: "29500"}]
    """)
    import jsonschema  # type: ignore[import-untyped]  # which takes more than a second: each worker collects every test

    (kind,) = yaml.safe_load_all(CRDS.read_text())
    (version,) = kind["spec"]["versions"]
    ours = {**theirs, "apiVersion": f"{kind['spec']['group']}/{version['name']}"}
    jsonschema.validate(ours, version["schema"]["openAPIV3Schema"])
    job = msgspec.convert(ours, elastic_jobs.RawJob)
    assert elastic_jobs.replicas_of(job) == (4, 16)
    assert format_request(elastic_jobs.gpu_of(job)) == "8"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**ours, "spec": {**ours["spec"], "priority": 5000}}, version["schema"]["openAPIV3Schema"])


async def test_a_quota_for_fewer_than_its_fewest_replicas_leaves_nothing_held() -> None:
    """A dry run is not charged, so each of its pods would be let in; together they are not. It runs once they may."""
    async with operator(2) as cluster:
        quotas = cluster.api.store.kind("v1", "resourcequotas")
        hard = {f"requests.{names.GPU_PERCENT}": "100"}
        cluster.api.store.create(quotas, "default", {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
        make_job(cluster, "a", 2, 2)
        await eventually(lambda: "exceeded quota: gpus" in status(cluster, "a").get("message", ""), "word of it")

        async def nothing() -> bool:
            return let_go(cluster) and not await cluster.leases() and not pods_of(cluster, "a")

        await eventually(nothing, "what nobody can use to be given back")
        cluster.api.store.remove(quotas, ("default", "gpus"))
        await bound(cluster, "a", 2)


async def test_a_job_whose_pods_are_refused_asks_for_no_lease_again_for_a_while() -> None:
    """Each lease may cost others theirs."""
    async with operator(2, rest_s=600.0) as cluster:
        quotas = cluster.api.store.kind("v1", "resourcequotas")
        hard = {f"requests.{names.GPU_PERCENT}": "100"}
        cluster.api.store.create(quotas, "default", {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
        make_job(cluster, "a", 2, 2)
        await eventually(lambda: "exceeded quota: gpus" in status(cluster, "a").get("message", ""), "word of it")
        await cluster.settled(0)
        cluster.api.store.remove(quotas, ("default", "gpus"))
        make_job(cluster, "b", 2, 2)
        await bound(cluster, "b", 2)
        assert not pods_of(cluster, "a")
        assert [lease.request.name for lease in await cluster.leases()] == ["default/b"]

"""Kueue reserves quota and asks; the pool reserves the gang; pods find their places; the reservation goes once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from aliquot.client import WaitUntil
from aliquot.kube.controllers.kueue import KueueController
from aliquot.kube.core import kueue, names
from aliquot.kube.core.leases import labels_of
from aliquot.kube.core.reconciling import Patience
from tests.coordinator.pool import eventually
from tests.kube.cluster import CLUSTER, KubeCluster, audit, kube_cluster, scheduling
from tests.kube.making import delete_pod, make_pod

VERSION = "kueue.x-k8s.io/v1beta2"
CHECK = "aliquot"


@contextlib.asynccontextmanager
async def controller(cluster: KubeCluster, patience: Patience | None = None) -> AsyncIterator[KueueController]:
    parts = cluster.extender.parts
    made = KueueController(replace(parts, patience=patience or Patience()))
    running = asyncio.create_task(made.loop.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def install(cluster: KubeCluster) -> None:
    cluster.api.store.serve(VERSION, "workloads", "Workload")
    kind = cluster.api.store.serve(VERSION, "admissionchecks", "AdmissionCheck", namespaced=False)
    for name, by in ((CHECK, kueue.CONTROLLER), ("other", "example.com/other")):
        check = {"metadata": {"name": name}, "spec": {"controllerName": by}}
        cluster.api.store.create(kind, "", check)


def set_status(cluster: KubeCluster, name: str, *, quota: bool, states: bool = True, **conditions: bool) -> None:
    """As Kueue would: quota reserved, checks pending; or taken away, checks cleared."""
    kind = cluster.api.store.kind(VERSION, "workloads")
    old = kind.items["default", name]
    found = [{"type": "QuotaReserved", "status": str(quota)}]
    found += [{"type": type_, "status": str(value)} for type_, value in conditions.items()]
    checks = [{"name": check, "state": "Pending", "message": ""} for check in (CHECK, "other")] if states else []
    item = {**old, "metadata": {**old["metadata"]}, "status": {"conditions": found, "admissionChecks": checks}}
    cluster.api.store.write(kind, ("default", name), item, "MODIFIED")


def workload(cluster: KubeCluster, name: str, *counts: int, percent: int = 100, priority: int = 0) -> Any:
    container = {"name": "c", "resources": {"limits": {names.GPU_PERCENT: str(percent)}}}
    sets = [
        {"name": f"set{index}", "count": count, "template": {"metadata": {}, "spec": {"containers": [container]}}}
        for index, count in enumerate(counts)
    ]
    sets.append({"name": "driver", "count": 1, "template": {"spec": {"containers": [{"name": "c"}]}}})
    kind = cluster.api.store.kind(VERSION, "workloads")
    made = cluster.api.store.create(
        kind, "default", {"metadata": {"name": name}, "spec": {"podSets": sets, "priority": priority}}
    )
    set_status(cluster, name, quota=True)
    return made


def check_of(cluster: KubeCluster, name: str, which: str = CHECK) -> Any:
    item = cluster.api.store.kind(VERSION, "workloads").items["default", name]
    return next((one for one in item["status"]["admissionChecks"] if one["name"] == which), {})


async def told(cluster: KubeCluster, name: str, state: str) -> Any:
    await eventually(lambda: check_of(cluster, name).get("state") == state, f"{name} to be {state}")
    return check_of(cluster, name)


async def test_a_whole_job_is_reserved_before_its_pods_exist_and_they_find_it() -> None:
    async with kube_cluster(4) as cluster, controller(cluster):
        install(cluster)
        made = workload(cluster, "job", 3)
        check = await told(cluster, "job", "Ready")
        assert check_of(cluster, "job", "other")["state"] == "Pending"
        (update,) = check["podSetUpdates"]
        gang = kueue.gang_name(made["metadata"]["uid"], 0)
        assert update["labels"] == {names.GANG: gang}
        assert len(await cluster.leases()) == 1
        async with scheduling(cluster) as scheduler:
            for number in range(3):
                meta = {"labels": update["labels"], "annotations": update["annotations"]}
                make_pod(cluster.api, f"p{number}", {names.GPU_PERCENT: 100}, **meta)
                assert await scheduler.cycle(f"p{number}"), scheduler.refusals
            await audit(cluster)
            for number in range(3):
                delete_pod(cluster.api, f"p{number}")
        set_status(cluster, "job", quota=True, Finished=True)
        await cluster.settled(0)


async def test_pods_that_were_asked_about_too_early_are_asked_about_again() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        install(cluster)
        made = workload(cluster, "job", 1)
        labels = {names.GANG: kueue.gang_name(made["metadata"]["uid"], 0)}
        annotations = {names.GANG_SIZE: "1", names.RESERVED_BY: "kueue"}
        make_pod(cluster.api, "p0", {names.GPU_PERCENT: 100}, labels=labels, annotations=annotations)
        assert not await scheduler.cycle("p0")
        assert "waits for its reservation" in scheduler.refusals["default/p0"]
        async with controller(cluster):
            await told(cluster, "job", "Ready")
            await eventually(lambda: names.ROOM in cluster.pod("p0")["metadata"]["annotations"], "its waking")
            await eventually(lambda: scheduler.cycle("p0"), "its bind")
        await audit(cluster)


async def test_eviction_between_ready_and_bind_frees_once_and_binds_nothing() -> None:
    async with kube_cluster(2) as cluster, controller(cluster), scheduling(cluster) as scheduler:
        install(cluster)
        workload(cluster, "job", 2)
        (update,) = (await told(cluster, "job", "Ready"))["podSetUpdates"]
        meta = {"labels": update["labels"], "annotations": update["annotations"]}
        pod = make_pod(cluster.api, "p0", {names.GPU_PERCENT: 100}, **meta)
        node = await scheduler.place(pod)
        assert node
        set_status(cluster, "job", quota=False, states=False)
        await cluster.settled(0)
        await eventually(lambda: not list(cluster.extender.parts.book), "the book")
        assert not await scheduler.bind(pod, node)
        assert not await scheduler.cycle("p0")
        assert "waits for its reservation by kueue" in scheduler.refusals["default/p0"]
        assert not await cluster.leases()


async def test_what_does_not_fit_now_is_tried_again_and_what_never_fits_is_rejected() -> None:
    async with kube_cluster(3) as cluster, controller(cluster):
        install(cluster)
        workload(cluster, "first", 2)
        await told(cluster, "first", "Ready")
        workload(cluster, "second", 2)
        check = await told(cluster, "second", "Retry")
        assert check["requeueAfterSeconds"] == kueue.RETRY_AFTER_S
        workload(cluster, "never", 4)
        await told(cluster, "never", "Rejected")
        assert len(await cluster.leases()) == 1
        set_status(cluster, "first", quota=True, Finished=True)
        await cluster.settled(0)
        set_status(cluster, "second", quota=True)  # Kueue has queued it again
        await told(cluster, "second", "Ready")


async def test_pod_sets_are_reserved_together_or_not() -> None:
    async with kube_cluster(3) as cluster, controller(cluster):
        install(cluster)
        workload(cluster, "both", 1, 2)
        check = await told(cluster, "both", "Ready")
        assert [update["name"] for update in check["podSetUpdates"]] == ["set0", "set1"]
        assert "kubernetes.io/hostname" in check["podSetUpdates"][0]["nodeSelector"]
        set_status(cluster, "both", quota=False, states=False)
        await cluster.settled(0)
        workload(cluster, "never", 2, 4)
        await told(cluster, "never", "Rejected")
        await cluster.settled(0)


async def test_a_workload_deleted_while_the_controller_was_down_lets_go() -> None:
    async with kube_cluster(2) as cluster:
        install(cluster)
        async with controller(cluster):
            workload(cluster, "job", 2)
            workload_kind = cluster.api.store.kind(VERSION, "workloads")
            await told(cluster, "job", "Ready")
        cluster.api.store.remove(workload_kind, ("default", "job"))
        async with controller(cluster):
            await cluster.settled(0)


async def test_a_reservation_that_the_pool_took_back_is_told() -> None:
    async with kube_cluster(2) as cluster, controller(cluster):
        install(cluster)
        workload(cluster, "job", 2)
        await told(cluster, "job", "Ready")
        (lease,) = await cluster.leases()
        await cluster.pool.release(lease.lease_id)
        await told(cluster, "job", "Retry")


async def test_the_check_is_active_only_of_ours() -> None:
    async with kube_cluster(1) as cluster:
        install(cluster)
        kind = cluster.api.store.kind(VERSION, "admissionchecks")
        async with controller(cluster):
            await eventually(lambda: kind.items["", CHECK].get("status"), "its condition")
        assert "status" not in kind.items["", "other"]


async def test_a_workload_of_higher_priority_has_room_made_for_it() -> None:
    async with kube_cluster(2) as cluster, controller(cluster), scheduling(cluster) as scheduler:
        install(cluster)
        make_pod(cluster.api, "humble", {names.GPU_PERCENT: 100})
        assert await scheduler.cycle("humble")
        workload(cluster, "urgent", 2, priority=1000)
        await eventually(lambda: "deletionTimestamp" in cluster.pod("humble")["metadata"], "the other pod to be ended")
        delete_pod(cluster.api, "humble")
        (update,) = (await told(cluster, "urgent", "Ready"))["podSetUpdates"]
        for number in range(2):
            meta = {"labels": update["labels"], "annotations": update["annotations"]}
            make_pod(cluster.api, f"p{number}", {names.GPU_PERCENT: 100}, **meta)
            assert await scheduler.cycle(f"p{number}"), scheduler.refusals
        await audit(cluster)


async def test_who_waits_for_room_is_pending_and_asks_again_when_it_takes_too_long() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        install(cluster)
        make_pod(cluster.api, "other", {names.GPU_PERCENT: 100})
        assert await scheduler.cycle("other")
        made = workload(cluster, "job", 1)
        gang = kueue.gang_name(made["metadata"]["uid"], 0)
        labels = labels_of(CLUSTER, "default", gang=gang, owner=kueue.OWNER)
        sdk = cluster.extender.parts.pool
        await sdk.allocate(
            "1", tenant="default", until=WaitUntil.QUEUED, detached=True, name="default/job", labels=labels
        )
        await cluster.settled(2)
        async with controller(cluster) as patient:
            await eventually(lambda: patient.loop.passes, "a pass")
            await eventually(lambda: any(check.metadata.name == CHECK for check in patient.checks), "the check")
        assert check_of(cluster, "job")["state"] == "Pending"
        assert len(await cluster.leases()) == 2
        async with controller(cluster, Patience(gang_ms=0)):
            await told(cluster, "job", "Retry")
            await cluster.settled(1)


async def test_a_workload_of_several_gangs_never_holds_one_while_it_waits_for_another() -> None:
    async with kube_cluster(2) as cluster, controller(cluster), scheduling(cluster) as scheduler:
        install(cluster)
        make_pod(cluster.api, "humble", {names.GPU_PERCENT: 100})
        assert await scheduler.cycle("humble")
        workload(cluster, "urgent", 1, 1, priority=1000)
        await told(cluster, "urgent", "Retry")
        await cluster.settled(1)
        assert "deletionTimestamp" not in cluster.pod("humble")["metadata"]

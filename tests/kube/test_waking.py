"""Pods that wait are asked about again when room became free outside of their cluster, and only then."""

from __future__ import annotations

from typing import Any

from aliquot.client import WaitUntil
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names
from aliquot.kube.core.shapes import RawMeta, RawPod
from aliquot.kube.extender.waking import Waker
from aliquot.kube.wiring import running
from tests.coordinator.pool import eventually
from tests.kube.cluster import KubeCluster, kube_cluster, scheduling
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import delete_pod, make_pod


def room(cluster: KubeCluster, name: str) -> str:
    return str((cluster.pod(name)["metadata"].get("annotations") or {}).get(names.ROOM, ""))


async def grant(cluster: KubeCluster) -> Any:
    sdk = cluster.extender.parts.pool
    return await sdk.grant_on("1", "node-0", until=WaitUntil.GRANTED, detached=True, tenant="others")


async def test_a_lease_of_somebody_else_that_ends_wakes_who_waits_for_it() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        lease = await grant(cluster)
        make_pod(cluster.api, "a", {names.GPU: 1})
        make_pod(cluster.api, "gone", {names.GPU: 1})
        for name in ("a", "gone"):
            assert not await scheduler.cycle(name)
        delete_pod(cluster.api, "gone")
        assert not room(cluster, "a")
        await cluster.pool.release(lease.lease_id)
        await eventually(lambda: room(cluster, "a"), "its annotation")
        assert await scheduler.cycle("a")


def patched(api: FakeApi) -> list[str]:
    return [path.rpartition("/")[2] for method, path in api.calls if method == "PATCH"]


async def test_the_most_urgent_are_woken_first_and_others_after_them() -> None:
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        waker = Waker(client, pause_s=0.01, at_once=2)
        for number in range(5):
            uid = make_pod(api, f"p{number}")["metadata"]["uid"]
            pod = RawPod(RawMeta(f"p{number}", "default", uid))
            pod.spec.priority = number
            waker.refused(pod, 0.0)
        waker.forget(api.pods.items["default", "p4"]["metadata"]["uid"])
        waker.refused(RawPod(RawMeta("never-was", "default", "no-such-uid")), 0.0)
        api.calls.clear()
        async with running(waker.run()):
            waker.freed()
            await eventually(lambda: waker.woken == 4 and len(patched(api)) == 5, "all that wait")
        woken = patched(api)
        assert set(woken[:2]) == {"p3", "p2"}
        assert set(woken[2:]) == {"p1", "p0", "never-was"}


async def test_who_could_not_be_woken_is_tried_again() -> None:
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        waker = Waker(client, pause_s=0.01)
        uid = make_pod(api, "a")["metadata"]["uid"]
        waker.refused(RawPod(RawMeta("a", "default", uid)), 0.0)
        api.faults.later = [(503, "")] * 3
        async with running(waker.run()):
            waker.freed()
            await eventually(lambda: waker.woken == 1, "its turn")


async def test_pods_that_were_made_again_leave_others_their_turn() -> None:
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        waker = Waker(client, pause_s=0.01, at_once=2)
        for number in range(4):
            make_pod(api, f"again{number}")
            pod = RawPod(RawMeta(f"again{number}", "default", f"uid-of-the-one-before-{number}"))
            pod.spec.priority = 1000
            waker.refused(pod, 0.0)
        waker.refused(RawPod(RawMeta("waits", "default", make_pod(api, "waits")["metadata"]["uid"])), 0.0)
        api.calls.clear()
        async with running(waker.run()):
            waker.freed()
            await eventually(lambda: waker.woken == 1, "its turn")
        assert sorted(patched(api)) == [*(f"again{number}" for number in range(4)), "waits"]

"""Pods of higher priority get room also where a scheduler, by its nodes' sums, sees nothing to gain from evicting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aliquot.client import Request
from aliquot.kube.core import names
from aliquot.kube.core.leases import KubeLease
from tests.coordinator.pool import eventually
from tests.kube.cluster import KubeCluster, audit, kube_cluster, scheduling
from tests.kube.making import delete_pod, make_pod
from tests.kube.scheduler import StockScheduler

CLASSES = {"low": 10, "middle": 50_000, "high": 100_000}


def classes(cluster: KubeCluster) -> None:
    kind = cluster.api.store.kind("scheduling.k8s.io/v1", "priorityclasses")
    for name, value in CLASSES.items():
        cluster.api.store.create(kind, "", {"metadata": {"name": name}, "value": value})


async def bound(cluster: KubeCluster, scheduler: StockScheduler, *pods: str, priority: str, **asked: Any) -> None:
    for name in pods:
        # No kubelet is here that would end its containers.
        make_pod(cluster.api, name, priority_class=priority, spec={"terminationGracePeriodSeconds": 0}, **asked)
        await eventually(lambda name=name: scheduler.cycle(name), "its place")  # type: ignore[misc]


def there(cluster: KubeCluster, pods: Sequence[str]) -> list[str]:
    return [name for name in pods if cluster.pod(name) is not None]


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        pytest.param({names.GPU_PERCENT: 80}, "", id="cards-too-full-each"),
        pytest.param({}, "0.8(A100)", id="by-annotation"),
        pytest.param({names.GPU_MEMORY_MIB: 64 << 10}, "", id="by-memory"),
        pytest.param({names.GPU: 1}, "", id="whole"),
    ],
)
async def test_whatever_it_asks_for_one_of_lower_priority_goes(limits: dict[str, int], request_: str) -> None:
    """Each card has 0.4 left, and the node by its sums 80 percent: only for a whole one does the scheduler ask us."""
    async with kube_cluster(devices=2, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "a", "b", priority="low", limits={names.GPU_PERCENT: 60})
        annotations = {names.REQUEST: request_} if request_ else None
        make_pod(cluster.api, "vip", limits, priority_class="high", annotations=annotations)
        async with scheduling(cluster, preempts=True):
            await eventually(lambda: cluster.node_of("vip"), "the room that was made")
        await cluster.settled(2)
        await eventually(lambda: len(there(cluster, ("a", "b"))) == 1, "one is enough")
        await audit(cluster)


async def test_who_goes_is_the_pools_choice_and_the_scheduler_evicts_nobody_beside() -> None:
    async with kube_cluster(devices=2, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "middle", priority="middle", limits={names.GPU: 1})
            await bound(cluster, scheduler, "low", priority="low", limits={names.GPU: 1})
            make_pod(cluster.api, "vip", {names.GPU: 1}, priority_class="high")
            assert not await scheduler.cycle("vip")
            assert await scheduler.preempt("vip") == {}
            await eventually(lambda: not there(cluster, ["low"]), "it to go")
            assert await scheduler.preempt("vip") == {}, "it waits for its room"
            await eventually(lambda: scheduler.cycle("vip"), "the room that was made")
        assert cluster.node_of("middle")
        await cluster.settled(2)
        await audit(cluster)


@pytest.mark.parametrize("policy", ["Never", None])
async def test_who_may_not_preempt_waits(policy: str | None) -> None:
    """By its class, or because nobody is of lower priority."""
    async with kube_cluster(devices=2, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "a", "b", priority="low", limits={names.GPU_PERCENT: 60})
            vip = make_pod(cluster.api, "vip", {names.GPU_PERCENT: 80}, priority_class="high" if policy else "low")
            vip["spec"]["preemptionPolicy"] = policy
            assert not await scheduler.cycle("vip")
            assert await scheduler.preempt("vip") == {}
        await cluster.settled(2)
        assert there(cluster, ("a", "b")) == ["a", "b"]


async def test_room_for_a_pod_that_goes_is_given_back() -> None:
    async with kube_cluster(devices=2, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "a", "b", priority="low", limits={names.GPU_PERCENT: 60})
            make_pod(cluster.api, "vip", {names.GPU_PERCENT: 80}, priority_class="high")
            assert not await scheduler.cycle("vip")
            await eventually(lambda: len(there(cluster, ("a", "b"))) == 1, "room to be made")
            delete_pod(cluster.api, "vip")
            await cluster.settled(1)
            await audit(cluster)


async def test_another_process_goes_on_with_room_that_is_being_made() -> None:
    async with kube_cluster(devices=2, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "a", "b", priority="low", limits={names.GPU_PERCENT: 60})
            uid = make_pod(cluster.api, "vip", {names.GPU_PERCENT: 80}, priority_class="high")["metadata"]["uid"]
            assert not await scheduler.cycle("vip")
        await cluster.extender.stop()
        await cluster.start_extender()

        def room() -> KubeLease | None:
            lease = cluster.extender.parts.book.of_pod(uid)
            return lease if lease is not None and lease.holding else None

        await eventually(room, "its room")
        async with scheduling(cluster) as scheduler:
            await eventually(lambda: scheduler.cycle("vip"), "its place")
        await cluster.settled(2)
        await eventually(lambda: len(there(cluster, ("a", "b"))) == 1, "whose room it is has gone")
        await audit(cluster)


async def test_leases_of_people_without_pods_make_room_too() -> None:
    async with kube_cluster(sums=True) as cluster:
        classes(cluster)
        pool = cluster.extender.parts.pool
        await pool.allocate(Request("0.5", tenant="default", preemptible=True, detached=True, priority=0))
        make_pod(cluster.api, "vip", {names.GPU_PERCENT: 80}, priority_class="high")
        async with scheduling(cluster, preempts=True):
            await eventually(lambda: cluster.node_of("vip"), "the room that was made")
        await audit(cluster)


async def test_a_gang_that_its_scheduler_sees_no_room_to_make_for_gets_it() -> None:
    async with kube_cluster(devices=4, sums=True) as cluster:
        classes(cluster)
        async with scheduling(cluster) as scheduler:
            await bound(cluster, scheduler, "a", "b", "c", "d", priority="low", limits={names.GPU_PERCENT: 60})
        gang: dict[str, Any] = {"labels": {names.GANG: "g"}, "annotations": {names.GANG_SIZE: "2"}}
        for name in ("m0", "m1"):
            make_pod(cluster.api, name, {names.GPU_PERCENT: 80}, priority_class="high", **gang)
        async with scheduling(cluster, preempts=True):
            await eventually(lambda: cluster.node_of("m0") and cluster.node_of("m1"), "the room that was made")
        await eventually(lambda: len(there(cluster, "abcd")) == 2, "two are enough")
        await audit(cluster)

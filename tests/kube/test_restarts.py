"""Whoever is restarted, alone or two together, before, between and after: no double booking, no ghost."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from pathlib import Path

import pytest

from aliquot.client import WaitUntil
from aliquot.common.duration import DurationMs
from aliquot.kube.core import names
from aliquot.kube.core.leases import labels_of
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.settings import Settings
from tests.coordinator import pool as pools
from tests.coordinator.pool import eventually
from tests.kube.cluster import CLUSTER, IMPATIENT, KubeCluster, audit, kube_cluster, scheduling
from tests.kube.conformance.whole import unlocked
from tests.kube.making import delete_pod, make_pod
from tests.kube.reconcilers import round_of

QUARTER = {names.GPU_PERCENT: 25}


async def restart_extender(cluster: KubeCluster) -> None:
    await cluster.extender.stop()
    await cluster.start_extender()


async def restart_api(cluster: KubeCluster) -> None:
    port = int(cluster.api.url.rpartition(":")[2])
    await cluster.api.stop()
    await cluster.api.start(port)


async def forget_history(cluster: KubeCluster) -> None:
    cluster.api.store.compact()
    cluster.api.drop_watches()


WHAT = {"extender": restart_extender, "api": restart_api, "history": forget_history}


@pytest.mark.parametrize("names_", [*WHAT, *map("+".join, itertools.combinations(WHAT, 2))])
async def test_restarts_while_pods_come_and_go(names_: str) -> None:
    async with kube_cluster(3, devices=2) as cluster, scheduling(cluster, loop=True):
        for number in range(12):
            make_pod(cluster.api, f"a{number}", QUARTER)
        await asyncio.gather(*(WHAT[name](cluster) for name in names_.split("+")))
        for number in range(0, 12, 2):
            delete_pod(cluster.api, f"a{number}")
        for number in range(6):
            make_pod(cluster.api, f"b{number}", QUARTER)
        left = [f"a{number}" for number in range(1, 12, 2)] + [f"b{number}" for number in range(6)]
        await eventually(lambda: all(cluster.node_of(name) for name in left), "all bound")
        await eventually(lambda: _clean(cluster), "no ghosts")


async def _clean(cluster: KubeCluster) -> bool:
    try:
        await audit(cluster)
    except AssertionError:
        return False
    return True


async def test_the_coordinator_restarts_with_its_journal(tmp_path: Path) -> None:
    settings = pools.settings_for(pools.sqlite(tmp_path / "journal"))
    async with kube_cluster(2, pool_settings=settings) as cluster, scheduling(cluster) as scheduler:
        for name in ("a", "b", "c"):
            make_pod(cluster.api, name, QUARTER)
            assert await scheduler.cycle(name)
        address = cluster.pool.address
        cluster.pool.coordinator.stop()
        delete_pod(cluster.api, "a")
        await eventually(lambda: unlocked(tmp_path / "journal.lock"), "its end")
        again = dataclasses.replace(settings, listen=address)
        async with pools.running(again) as pool:
            cluster.pool = pool
            await eventually(lambda: _clean(cluster), "the lease of the pod that was deleted meanwhile to go")
            assert len(await cluster.leases()) == 2
            make_pod(cluster.api, "d", QUARTER)
            await eventually(lambda: scheduler.cycle("d"), "a bind after the restart")
            await audit(cluster)


async def test_pods_deleted_while_everything_of_ours_was_down() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        for name in ("a", "b"):
            make_pod(cluster.api, name, QUARTER)
            assert await scheduler.cycle(name)
        await cluster.extender.stop()
        delete_pod(cluster.api, "a")
        make_pod(cluster.api, "a", QUARTER)  # made again by the same name
        cluster.api.store.compact()
        await cluster.start_extender()
        await cluster.settled(1)
        assert await scheduler.cycle("a")
        await audit(cluster)


async def test_a_grant_that_was_never_bound_is_cleared_by_another_process() -> None:
    async with kube_cluster(1) as cluster:
        pod = make_pod(cluster.api, "a", QUARTER)
        uid = pod["metadata"]["uid"]
        await cluster.extender.parts.pool.grant_on(
            "0.25",
            "node-0",
            until=WaitUntil.GRANTED,
            key=uid,
            tenant="default",
            detached=True,
            name="default/a",
            labels=labels_of(CLUSTER, "default", pod_uid=uid),
        )
        await cluster.settled(1)
        assert await round_of(cluster, Patience()) == 0
        await round_of(cluster, IMPATIENT)
        await cluster.settled(0)


async def test_a_pod_whose_lease_was_ended_may_not_go_on() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        assert await scheduler.cycle("a")
        (lease,) = await cluster.leases()
        await cluster.pool.release(lease.lease_id)
        await eventually(lambda: "deletionTimestamp" in cluster.pod("a")["metadata"], "its deletion")
        await eventually(lambda: "AliquotLeaseEnded" in cluster.events(), "an event")


async def test_a_lease_that_ended_long_ago_is_asked_for() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        make_pod(cluster.api, "b", QUARTER)
        assert await scheduler.cycle("a")
        assert await scheduler.cycle("b")
        lease_id = cluster.assignment("a")["lease"]
        await cluster.extender.stop()
        await cluster.pool.release(lease_id)
        await cluster.start_extender()
        await eventually(lambda: "deletionTimestamp" in cluster.pod("a")["metadata"], "its deletion")
        assert "deletionTimestamp" not in cluster.pod("b")["metadata"]


async def test_leases_of_another_cluster_and_of_people_are_left_alone() -> None:
    async with kube_cluster(1) as cluster:
        sdk = cluster.extender.parts.pool
        mine = await sdk.grant_on("0.1", "node-0", until=WaitUntil.GRANTED, tenant="t", detached=True)
        labels = labels_of("another", "default", pod_uid="no-such-pod")
        theirs = await sdk.grant_on("0.1", "node-0", until=WaitUntil.GRANTED, tenant="t", detached=True, labels=labels)
        assert await round_of(cluster, IMPATIENT) == 0
        for lease in (mine, theirs):
            assert (await sdk.get(lease.lease_id)).state == "GRANTED"


async def test_a_watch_that_is_half_open_binds_nothing() -> None:
    settings = Settings(cluster=CLUSTER, silence=DurationMs(1_500))
    async with kube_cluster(1, settings=settings) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        cluster.api.faults.silent = True
        informer = cluster.extender.parts.pods.informer
        await eventually(lambda: not informer.trustworthy, "its silence to be noticed")
        assert not await scheduler.cycle("a")
        assert "was not heard" in scheduler.refusals["default/a"]
        cluster.api.faults.silent = False
        await eventually(lambda: scheduler.cycle("a"), "a bind afterwards")


async def test_a_frozen_api_server_ends_nothing() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        assert await scheduler.cycle("a")
        cluster.api.faults.frozen.clear()
        cluster.api.drop_watches()
        await round_of(cluster, IMPATIENT)
        assert len(await cluster.leases()) == 1
        cluster.api.faults.frozen.set()
        make_pod(cluster.api, "b", QUARTER)
        await eventually(lambda: scheduler.cycle("b"), "a bind afterwards")
        await audit(cluster)

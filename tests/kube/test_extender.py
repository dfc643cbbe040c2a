"""Pods get exact parts of GPUs through a stock scheduler and our extender, and every failure on the way is undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from aliquot.client import AsyncPool, Lease, NodeFit, PlacementRefused, PoolError, Request, WaitUntil
from aliquot.kube.core import names
from aliquot.kube.core.accounts import AccountRule
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.batching import GrantBatches
from aliquot.kube.settings import Settings
from tests.coordinator.pool import eventually
from tests.kube.cluster import CLUSTER, audit, kube_cluster, scheduling
from tests.kube.fake_api.pods import bind
from tests.kube.fake_api.store import ApiFailure
from tests.kube.making import delete_pod, make_namespace, make_pod, set_phase

QUARTER = {names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 8192}


async def test_a_part_of_a_gpu_end_to_end() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        assert await scheduler.cycle("a")
        said = cluster.assignment("a")
        (part,) = said["slices"]
        assert (said["member"], said["node"]) == (0, cluster.node_of("a"))
        assert (part["share_milli"], part["memory_bytes"]) == (250, 8192 << 20)
        (lease,) = await cluster.leases()
        assert lease.lease_id == said["lease"] == cluster.pod("a")["metadata"]["annotations"][names.LEASE_ID]
        assert (lease.request.tenant, lease.request.name) == ("default", "default/a")
        assert lease.request.detached
        await audit(cluster)
        delete_pod(cluster.api, "a")
        await cluster.settled(0)
        await audit(cluster)


async def test_nothing_secret_is_on_the_pod() -> None:
    async with kube_cluster() as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        assert await scheduler.cycle("a")
        lease = await cluster.extender.parts.pool.grant_on(
            "0.1", "node-0", until=WaitUntil.GRANTED, key="other", detached=True, tenant="default"
        )
        assert lease.secret
        assert lease.secret not in msgspec.json.encode(cluster.pod("a")).decode()
        assert "secret" not in msgspec.json.encode(cluster.pod("a")).decode()


async def test_a_pod_that_was_not_counted_for_what_it_asks_gets_nothing() -> None:
    """Quotas would not hold it, and no kubelet would ask about its containers before they start."""
    async with kube_cluster() as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "slipped", annotations={names.REQUEST: "0.25"}, admit=False)
        make_pod(cluster.api, "changed", annotations={names.REQUEST: "0.25"})
        said = cluster.pod("changed")
        annotations = {**said["metadata"]["annotations"], names.REQUEST: "0.25,20Gi"}
        item = {**said, "metadata": {**said["metadata"], "annotations": annotations}}
        cluster.api.store.write(cluster.api.pods, ("default", "changed"), item, "MODIFIED")
        make_pod(cluster.api, "grown", annotations={names.REQUEST: "0.75"}, admit=False, spec=said["spec"])
        for name in ("slipped", "changed", "grown"):
            assert not await scheduler.cycle(name)
        assert "webhook did not see it" in scheduler.refusals["default/slipped"]
        assert "webhook did not see it" in scheduler.refusals["default/changed"]
        assert "contradict" in scheduler.refusals["default/grown"]
        assert not await cluster.leases()


async def test_forty_parts_of_one_node() -> None:
    async with kube_cluster(1, devices=10) as cluster, scheduling(cluster, loop=True):
        for number in range(40):
            make_pod(cluster.api, f"p{number}", {names.GPU_PERCENT: 25})
        await eventually(lambda: all(cluster.node_of(f"p{number}") for number in range(40)), "all bound")
        await audit(cluster)
        assert len(await cluster.leases()) == 40


async def test_grants_of_one_moment_go_in_one_message() -> None:
    async with kube_cluster(1, devices=10) as cluster:
        pool = Mock(wraps=cluster.extender.parts.pool)
        batches = GrantBatches(pool)
        asked = [Request("0.25", tenant="default", detached=True, name=f"p{number}") for number in range(41)]
        asks = (batches.grant(request, "node-0", request.name) for request in asked)
        found = await asyncio.gather(*asks, return_exceptions=True)
        assert sum(isinstance(lease, Lease) for lease in found) == 40
        assert sum(isinstance(error, PlacementRefused) for error in found) == 1
        pool.grant_on_batch.assert_called_once()
        await batches.close()


async def test_a_pool_that_is_away_is_told_to_all_who_asked() -> None:
    async with kube_cluster(1) as cluster:
        async with AsyncPool("127.0.0.1:1", token="none", timeout_s=0.5) as away:
            batches = GrantBatches(away)
            asks = [batches.grant(Request("0.25"), "node-0", str(number)) for number in range(3)]
            found = await asyncio.gather(*asks, return_exceptions=True)
            assert [isinstance(error, PoolError) for error in found] == [True] * 3
            waiting = asyncio.ensure_future(batches.grant(Request("0.25"), "node-0", "late"))
            await asyncio.sleep(0)
            await batches.close()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
        await audit(cluster)


async def test_what_does_not_fit_says_why_and_starts_when_there_is_room() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "big", {names.GPU: 1})
        make_pod(cluster.api, "late", QUARTER)
        assert await scheduler.cycle("big")
        assert not await scheduler.cycle("late")
        assert "aliquot:" in scheduler.refusals["default/late"]
        await eventually(lambda: "AliquotWaiting" in cluster.events(), "an event")
        set_phase(cluster.api, "big", "Succeeded")
        await cluster.settled(0)
        await eventually(lambda: scheduler.cycle("late"), "the room to be seen")
        await audit(cluster)


async def test_an_impossible_pod_is_told_so_and_preempts_nobody() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", annotations={names.REQUEST: "3(H100)"})
        make_pod(cluster.api, "b", {names.GPU_PERCENT: 130})
        make_pod(cluster.api, "c", annotations={names.REQUEST: "a little"})
        for name in "abc":
            assert not await scheduler.cycle(name)
        await eventually(lambda: {"AliquotImpossible", "AliquotRequestInvalid"} <= set(cluster.events()), "events")
        assert "whole GPUs" in scheduler.refusals["default/b"]
        assert not await cluster.leases()


async def test_binds_that_race_for_one_place_are_refused_one_by_one() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        pods = [make_pod(cluster.api, name, {names.GPU: 1}) for name in ("a", "b", "c")]
        assert [await scheduler.place(pod) for pod in pods] == ["node-0"] * 3
        done = await asyncio.gather(*(scheduler.bind(pod, "node-0") for pod in pods))
        assert sorted(done) == [False, False, True]
        await audit(cluster)


async def test_a_binding_whose_answer_is_lost_counts() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        lost: list[str] = []

        def lose(method: str, path: str) -> bool:
            if path.endswith("/binding") and not lost:
                lost.append(path)
                return True
            return False

        cluster.api.faults.lose_answer = lose
        assert await scheduler.cycle("a")
        assert lost
        await audit(cluster)


@pytest.mark.parametrize("how", ["deleted", "made again", "bound elsewhere"])
async def test_a_grant_whose_pod_is_gone_is_released(how: str) -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        pod = make_pod(cluster.api, "a", QUARTER)
        node = await scheduler.place(pod)
        if how == "bound elsewhere":
            bind(cluster.api.store, cluster.api.pods, ("default", "a"), {"target": {"name": "node-1"}})
        else:
            delete_pod(cluster.api, "a")
            if how == "made again":
                make_pod(cluster.api, "a", QUARTER)
        assert not await scheduler.bind(pod, node)
        await cluster.settled(0)


async def test_a_pod_is_granted_again_after_a_bind_that_failed_and_elsewhere() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        pod = make_pod(cluster.api, "a", QUARTER)
        await scheduler.place(pod)
        real = cluster.api._write
        refuse = [True]

        def write(request: Any, user: str, kind: Any, key: Any, sub: str, body: bytes) -> tuple[int, bytes]:
            if sub == "binding" and refuse and refuse.pop():
                raise ApiFailure(422, "Invalid", "not now")
            return real(request, user, kind, key, sub, body)

        cluster.api._write = write  # type: ignore[method-assign]
        assert not await scheduler.bind(pod, "node-0")
        await cluster.settled(0)
        assert await scheduler.bind(pod, "node-1")
        (lease,) = await cluster.leases()
        assert lease.request.labels[names.LEASE_ATTEMPT] == "1"
        assert cluster.node_of("a") == "node-1"
        await audit(cluster)


async def test_who_pays_is_ruled_and_not_said_by_pods() -> None:
    rules = (
        AccountRule(namespace="ml-*", namespace_labels={"team": "vision"}, tenant="research/vision", queue="night"),
        AccountRule(namespace="default"),
    )
    async with kube_cluster(1, settings=Settings(cluster=CLUSTER, rules=rules)) as cluster:
        make_namespace(cluster.api, "ml-a", team="vision")
        make_namespace(cluster.api, "ml-b")
        async with scheduling(cluster) as scheduler:
            make_pod(cluster.api, "a", QUARTER, namespace="ml-a", labels={"aliquot.dev/tenant": "rich"})
            make_pod(cluster.api, "b", QUARTER, namespace="ml-b")
            assert await scheduler.cycle("a", "ml-a")
            assert not await scheduler.cycle("b", "ml-b")
            assert "no rule" in scheduler.refusals["ml-b/b"]
            (lease,) = await cluster.leases()
            assert (lease.request.tenant, lease.request.queue) == ("research/vision", "night")


async def test_a_pod_that_asks_for_nothing_of_ours_is_bound_as_any_other() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", {"memory": 1})
        assert await scheduler.cycle("a")
        assert not await cluster.leases()


async def test_a_coordinator_that_is_away_binds_nothing() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", QUARTER)
        cluster.extender.parts.pool.timeout_s = 0.5
        cluster.pool.coordinator.stop()
        assert not await scheduler.cycle("a")
        assert not cluster.node_of("a")


async def test_filters_ask_the_pool_once_for_each_kind_of_pod_and_for_what_changed() -> None:
    async with kube_cluster(20) as cluster, scheduling(cluster) as scheduler:
        fits = cluster.extender.extender.fits
        pods = [make_pod(cluster.api, f"p{number}", QUARTER) for number in range(5)]
        for pod in pods:
            await scheduler.place(pod)
        filters = fits.hits
        assert filters == 4
        assert await scheduler.bind(pods[0], "node-3")
        await eventually(lambda: cluster.extender.parts.book.of_pod(pods[0]["metadata"]["uid"]), "the lease")
        asked = fits.asked
        await scheduler.place(pods[1])
        await eventually(lambda: fits.asked > asked, "the node that changed to be asked about")
        assert cluster.node_of("p0") == "node-3"


async def test_binds_under_way_are_counted_and_who_was_turned_away_is_woken_where_one_fails() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        extender = cluster.extender.extender
        pods = [make_pod(cluster.api, f"p{number}", {names.GPU_PERCENT: 25}) for number in range(5)]
        assert await scheduler.place(pods[0]) == "node-0"
        asked = await cluster.extender.parts.requests.of(msgspec.convert(pods[0], RawPod))
        assert asked is not None
        with contextlib.ExitStack() as others:
            for _ in range(3):
                others.enter_context(extender.fits.binding(asked.kind, "node-0"))
            assert await scheduler.place(pods[3]) == "node-0"
            last = extender.fits.binding(asked.kind, "node-0")
            last.__enter__()
            assert not await scheduler.place(pods[4])
            assert "being bound" in scheduler.refusals["default/p4"]
            refused = PlacementRefused("node-0: not now")
            assert not last.__exit__(PlacementRefused, refused, None)
            await eventually(lambda: names.ROOM in cluster.pod("p4")["metadata"].get("annotations", {}), "its waking")
            assert await scheduler.place(pods[4]) == "node-0"
        assert "AliquotWaiting" not in cluster.events()


async def test_a_pool_that_does_not_say_how_many_fit_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster, loop=True):
        fits = cluster.extender.extender.fits
        real = fits.ask

        async def ask(request: Request, nodes: Sequence[str]) -> list[NodeFit]:
            return [replace(fit, members=0) for fit in await real(request, nodes)]

        monkeypatch.setattr(fits, "ask", ask)
        for number in range(5):
            make_pod(cluster.api, f"p{number}", {names.GPU_PERCENT: 25})
        pods = [f"p{number}" for number in range(5)]
        await eventually(lambda: sum(bool(cluster.node_of(name)) for name in pods) == 4, "four of five")
        await audit(cluster)

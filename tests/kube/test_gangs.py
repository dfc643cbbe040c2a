"""Gangs by label: all or none, one lease, members bind where it is; they end together and are replaced one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aliquot.client import WaitUntil
from aliquot.kube.core import names
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.extender import gangs
from tests.coordinator.pool import eventually
from tests.kube.cluster import IMPATIENT, KubeCluster, audit, kube_cluster, scheduling
from tests.kube.making import delete_pod, make_pod, set_phase
from tests.kube.reconcilers import round_of


def member(
    cluster: KubeCluster,
    name: str,
    size: int = 4,
    gang: str = "g",
    percent: int = 100,
    *,
    share: bool = False,
    **fields: Any,
) -> Any:
    return make_pod(
        cluster.api,
        name,
        {names.GPU_PERCENT: percent},
        labels={names.GANG: gang},
        annotations={names.GANG_SIZE: str(size)} | ({"aliquot.dev/same-card": "true"} if share else {}),
        **fields,
    )


async def test_a_gang_starts_all_or_none() -> None:
    async with kube_cluster(4) as cluster, scheduling(cluster) as scheduler:
        for number in range(3):
            member(cluster, f"m{number}")
            assert not await scheduler.cycle(f"m{number}")
        assert "of 4 pods exist" in scheduler.refusals["default/m2"]
        assert not await cluster.leases()
        member(cluster, "m3")
        assert await scheduler.together(*(f"m{number}" for number in range(4))), scheduler.refusals
        (lease,) = await cluster.leases()
        assert lease.request.gang_size == 4
        assert {cluster.node_of(f"m{number}") for number in range(4)} == {f"node-{number}" for number in range(4)}
        assert {cluster.assignment(f"m{number}")["member"] for number in range(4)} == {0, 1, 2, 3}
        await audit(cluster)
        for number in range(4):
            set_phase(cluster.api, f"m{number}", "Succeeded")
            assert len(await cluster.leases()) == 1 or number == 3
        await cluster.settled(0)


async def test_forty_members_on_one_node_are_one_grant() -> None:
    async with kube_cluster(1, devices=10) as cluster, scheduling(cluster) as scheduler:
        for number in range(40):
            member(cluster, f"m{number}", 40, percent=25, share=True)
        nodes = [await scheduler.place(cluster.pod(f"m{number}")) for number in range(40)]
        assert set(nodes) == {"node-0"}
        assert len(await cluster.leases()) == 1
        bound = [scheduler.bind(cluster.pod(f"m{number}"), "node-0") for number in range(40)]
        assert all(await asyncio.gather(*bound))
        assert {cluster.assignment(f"m{number}")["member"] for number in range(40)} == set(range(40))
        await audit(cluster)


async def test_members_of_parts_are_on_cards_of_their_own() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        for number in range(2):
            member(cluster, f"m{number}", 2, percent=25)
        assert await scheduler.together("m0", "m1"), scheduler.refusals
        (lease,) = await cluster.leases()
        assert len({piece.device_uuid for piece in lease.slices}) == 2
        await audit(cluster)


async def test_a_gang_that_does_not_fit_holds_nothing_and_says_why() -> None:
    async with kube_cluster(3) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "other", {names.GPU: 1})
        assert await scheduler.cycle("other")
        for number in range(3):
            member(cluster, f"m{number}", 3)
        for number in range(3):
            assert not await scheduler.cycle(f"m{number}")
        assert len(await cluster.leases()) == 1
        await eventually(lambda: "AliquotGangWaiting" in cluster.events(), "an event")
        delete_pod(cluster.api, "other")
        await cluster.settled(0)
        await eventually(lambda: scheduler.place(cluster.pod("m0")), "room for all")
        assert await scheduler.together("m0", "m1", "m2")
        await audit(cluster)


async def test_a_refusal_is_forgotten_as_soon_as_room_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangs, "_REFUSAL_KEPT_S", 3600.0)
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        pool = cluster.extender.parts.pool
        other = await pool.grant_on(
            "1", "node-0", until=WaitUntil.GRANTED, key="other", detached=True, tenant="default"
        )
        for name in ("m0", "m1"):
            member(cluster, name, size=2)
        assert not await scheduler.together("m0", "m1")
        await pool.release(other.lease_id)
        for _ in range(300):  # until the extender has heard of it
            if await scheduler.together("m0", "m1"):
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail(f"it is refused for ever: {scheduler.refusals}")


async def test_an_impossible_gang_is_told_so_at_once() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        for number in range(3):
            member(cluster, f"m{number}", 3)
        assert not await scheduler.cycle("m0")
        await eventually(lambda: "AliquotGangImpossible" in cluster.events(), "an event")


async def test_a_member_that_is_replaced_takes_its_place() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        for name in ("m0", "m1"):
            member(cluster, name, 2)
        assert await scheduler.together("m0", "m1")
        was = cluster.assignment("m0")
        delete_pod(cluster.api, "m0")
        member(cluster, "m0-again", 2)
        await eventually(lambda: scheduler.cycle("m0-again"), "its place")
        assert cluster.assignment("m0-again") == was
        await audit(cluster)


async def test_a_gang_half_bound_is_given_up_whole_after_a_while() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        for name in ("m0", "m1"):
            member(cluster, name, 2)
        assert [await scheduler.place(cluster.pod(name)) for name in ("m1", "m0")]
        assert await scheduler.bind(cluster.pod("m0"), str(await scheduler.place(cluster.pod("m0"))))
        assert await round_of(cluster, Patience()) == 0
        await eventually(lambda: cluster.extender.parts.pods.of_gang("default", "g"), "the pods")
        await round_of(cluster, IMPATIENT)
        await cluster.settled(0)
        assert "deletionTimestamp" in cluster.pod("m0")["metadata"]


async def test_an_extender_that_restarts_goes_on_with_the_gang() -> None:
    async with kube_cluster(4) as cluster, scheduling(cluster) as scheduler:
        for number in range(4):
            member(cluster, f"m{number}")
        nodes = [await scheduler.place(cluster.pod(f"m{number}")) for number in range(4)]
        for number in range(2):
            assert await scheduler.bind(cluster.pod(f"m{number}"), nodes[number])
        await cluster.extender.stop()
        await cluster.start_extender()
        assert await scheduler.cycle("m2")
        assert await scheduler.cycle("m3")
        assert len(await cluster.leases()) == 1
        await audit(cluster)


async def test_what_its_scheduler_forbids_is_not_chosen() -> None:
    async with kube_cluster(0) as cluster, scheduling(cluster) as scheduler:
        await cluster.declare(2)
        await cluster.declare(2, prefix="other")
        for name in ("node-0", "node-1"):
            cluster.api.store.kind("v1", "nodes").items["", name]["metadata"]["labels"] = {"zone": "a"}
        for name in ("m0", "m1"):
            member(cluster, name, 2, spec={"nodeSelector": {"zone": "a"}})
        assert await scheduler.together("m0", "m1"), scheduler.refusals
        assert {cluster.node_of("m0"), cluster.node_of("m1")} == {"node-0", "node-1"}


async def test_no_member_runs_before_the_last_has_its_place() -> None:
    async with kube_cluster(3) as cluster, scheduling(cluster) as scheduler:
        selectors: dict[str, dict[str, str]] = {"m0": {}, "m1": {}, "m2": {"disk": "fast"}}
        for name, selector in selectors.items():
            member(cluster, name, 3, spec={"nodeSelector": selector})
        nodes = {name: await scheduler.place(cluster.pod(name)) for name in ("m0", "m1", "m2")}
        assert not nodes["m2"]  # its scheduler has none for it
        binds = [asyncio.create_task(scheduler.bind(cluster.pod(name), nodes[name])) for name in ("m0", "m1")]
        cluster.extender.extender.gangs.together_s = 0.01
        assert not await scheduler.bind(cluster.pod("m0"), nodes["m0"])
        assert "2 of 3 members of gang g have a place" in scheduler.refusals["default/m0"]
        await eventually(lambda: "AliquotGangWaiting" in cluster.events(), "an event")
        assert not any(cluster.node_of(name) for name in nodes)
        last = ({f"node-{number}" for number in range(3)} - set(nodes.values())).pop()
        cluster.api.store.kind("v1", "nodes").items["", last]["metadata"]["labels"] = {"disk": "fast"}
        assert await scheduler.cycle("m2"), scheduler.refusals
        await asyncio.gather(*binds)
        assert await scheduler.together(*(name for name in nodes if not cluster.node_of(name)))
        await audit(cluster)


async def test_a_gang_larger_than_a_schedulers_own_sample_of_nodes_starts() -> None:
    """By the chart's configuration it passes on all of them."""
    async with kube_cluster(104) as cluster, scheduling(cluster) as scheduler:
        members = [f"m{number}" for number in range(102)]
        for name in members:
            member(cluster, name, len(members))
        assert await scheduler.together(*members), scheduler.refusals
        assert len({cluster.node_of(name) for name in members}) == len(members)


async def test_a_gang_needs_its_size() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "a", {names.GPU: 1}, labels={names.GANG: "g"})
        assert not await scheduler.cycle("a")
        assert names.GANG_SIZE in scheduler.refusals["default/a"]


async def test_a_pod_that_asks_for_something_else_is_no_member() -> None:
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        member(cluster, "m0", 2, percent=25)
        member(cluster, "m1", 2, percent=50)
        assert await scheduler.place(cluster.pod("m0"))
        assert not await scheduler.cycle("m1")
        assert "reserved for 0.25" in scheduler.refusals["default/m1"]

"""Pods on a cluster with a stock scheduler and our extender: what docs/kubernetes.md promises.

Run against the fake API server and a stand-in in CI, and against a real cluster with a real kube-scheduler where
KUBECONFIG and KUBE_SCHEDULER name them.
"""

from __future__ import annotations

from typing import Any

from aliquot.client import WaitUntil
from aliquot.kube.api import resources
from aliquot.kube.core import names
from aliquot.v1 import leases_pb2
from tests.coordinator.pool import eventually
from tests.kube.conformance.conftest import Places

QUARTER = {names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 8192}


async def test_a_part_of_a_gpu_from_its_pod_to_its_release(places: Places) -> None:
    async with places(nodes=2) as place, place.extending():
        await place.create("a", QUARTER)
        await place.bound("a")
        await place.audit()
        (lease,) = (await place.pool.leases.List(leases_pb2.ListRequest())).leases
        assert [(part.share_milli, part.memory_bytes) for part in lease.slices] == [(250, 8192 << 20)]
        await place.delete("a")
        await place.settled(0)


async def test_forty_parts_of_one_node(places: Places) -> None:
    async with places(devices=10) as place, place.extending():
        for number in range(40):
            await place.create(f"p{number}", {names.GPU_PERCENT: 25})
        await place.bound(*(f"p{number}" for number in range(40)))
        await place.audit()
        await place.settled(40)


async def test_who_waits_starts_when_there_is_room(places: Places) -> None:
    async with places() as place, place.extending():
        await place.create("first", {names.GPU: 1})
        await place.bound("first")
        await place.create("second", {names.GPU: 1})
        await place.settled(1)
        assert not (await place.pods())["second"]["spec"].get("nodeName")
        await place.delete("first")
        await place.bound("second")
        await place.audit()


async def test_who_waits_for_what_somebody_else_held_is_asked_about_again(places: Places) -> None:
    """Nothing changes in the cluster then, and a stock scheduler would not try again for five minutes."""
    async with places() as place, place.extending():
        assert place.parts is not None
        pool = place.parts.pool
        other = await pool.grant_on("1", place.nodes[0], until=WaitUntil.GRANTED, detached=True, tenant="others")
        await place.create("a", {names.GPU: 1})

        async def told() -> bool:
            return b"AliquotWaiting" in await place.client.get(resources.EVENTS.path(place.namespace))

        await eventually(told, "an event that it waits")
        await pool.release(other.lease_id)
        await place.bound("a")
        await place.audit()


def member(size: int) -> dict[str, Any]:
    return {"labels": {names.GANG: "g"}, "annotations": {names.GANG_SIZE: str(size)}}


async def test_a_gang_starts_all_or_none(places: Places) -> None:
    async with places(nodes=4) as place, place.extending():
        for number in range(3):
            await place.create(f"m{number}", {names.GPU: 1}, **member(4))
        assert not any(pod["spec"].get("nodeName") for pod in (await place.pods()).values())
        await place.create("m3", {names.GPU: 1}, **member(4))
        where = await place.bound(*(f"m{number}" for number in range(4)))
        assert set(where.values()) == set(place.nodes)
        await place.settled(1)
        await place.audit()
        for number in range(4):
            await place.delete(f"m{number}")
        await place.settled(0)


async def test_a_higher_priority_takes_the_place_of_a_lower_one(places: Places, priority: str) -> None:
    async with places() as place, place.extending():
        await place.create("humble", {names.GPU: 1})
        await place.bound("humble")
        await place.create("urgent", {names.GPU: 1}, priority_class=priority)
        where = await place.bound("urgent")
        assert "humble" not in where
        await place.audit()


async def test_a_gang_of_higher_priority_takes_the_places_of_several(places: Places, priority: str) -> None:
    """One of three nodes is free: the pool makes room on the others, and keeps it together for the gang."""
    async with places(nodes=3) as place, place.extending():
        for number in range(2):
            await place.create(f"humble{number}", {names.GPU: 1})
        await place.bound("humble0", "humble1")
        for number in range(3):
            await place.create(f"m{number}", {names.GPU: 1}, priority_class=priority, **member(3))
        where = await place.bound(*(f"m{number}" for number in range(3)))
        assert set(where) == {f"m{number}" for number in range(3)}
        assert set(where.values()) == set(place.nodes)
        await place.settled(1)
        await place.audit()


async def test_a_gang_that_may_not_preempt_waits_and_is_not_called_impossible(places: Places) -> None:
    async with places(nodes=2) as place, place.extending():
        await place.create("other", {names.GPU: 1})
        await place.bound("other")
        for number in range(2):
            await place.create(f"m{number}", {names.GPU: 1}, **member(2))
        events = resources.EVENTS.path(place.namespace)

        async def told() -> bool:
            return b"AliquotGangWaiting" in await place.client.get(events)

        await eventually(told, "an event that it waits")
        assert b"AliquotGangImpossible" not in await place.client.get(events)
        await place.settled(1)
        await place.delete("other")
        await place.bound("m0", "m1")
        await place.audit()


async def test_room_that_is_made_for_a_gang_is_given_back_when_its_pods_go(places: Places, priority: str) -> None:
    async with places(nodes=2) as place, place.extending():
        await place.create("humble", {names.GPU: 1})
        await place.bound("humble")
        for number in range(2):
            await place.create(f"m{number}", {names.GPU: 1}, priority_class=priority, **member(2))

        async def asked() -> bool:
            return "humble" not in await place.pods()

        await eventually(asked, "room to be made")
        for number in range(2):
            await place.delete(f"m{number}")
        await place.settled(0)
        await place.create("later", {names.GPU: 1})
        await place.bound("later")
        await place.audit()


async def test_what_ends_between_grant_and_binding_holds_nothing(places: Places) -> None:
    """A storm of pods that are deleted while they are being bound."""
    async with places(devices=4) as place, place.extending():
        for number in range(16):
            await place.create(f"p{number}", {names.GPU_PERCENT: 25})
        for number in range(0, 16, 2):
            await place.delete(f"p{number}")
        await place.bound(*(f"p{number}" for number in range(1, 16, 2)))
        await place.settled(8)
        await place.audit()


async def test_an_extender_that_was_away_finds_what_happened(places: Places) -> None:
    async with places(devices=2) as place:
        async with place.extending():
            for name in "abcd":
                await place.create(name, {names.GPU_PERCENT: 50})
            await place.bound(*"abcd")
        await place.delete("a")
        await place.delete("b")
        await place.create("e", {names.GPU_PERCENT: 50})
        async with place.extending():
            await place.bound("c", "d", "e")
            await place.settled(3)
            await place.audit()


async def test_a_node_that_goes_and_returns(places: Places) -> None:
    """Its object is deleted with its pods, as a cloud does with a machine, and made again by the same name."""
    async with places(nodes=1, devices=2) as place, place.extending():
        await place.create("a", {names.GPU: 1})
        await place.bound("a")
        node = resources.NODES.path(name=place.nodes[0])
        await place.client.delete(node)
        await place.delete("a")
        await place.settled(0)
        await place.create("b", {names.GPU: 2})
        await places.make_node(place.nodes[0], 2)
        await place.bound("b")
        await place.audit()


async def test_an_evicted_pod_gives_its_part_back(places: Places) -> None:
    async with places() as place, place.extending():
        await place.create("a", {names.GPU: 1})
        await place.bound("a")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "a", "namespace": place.namespace},
            "deleteOptions": {"gracePeriodSeconds": 0},
        }
        await place.client.post(resources.PODS.path(place.namespace, "a", "eviction"), eviction)
        await place.settled(0)
        await place.create("b", {names.GPU: 1})
        await place.bound("b")
        await place.audit()

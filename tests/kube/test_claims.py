"""ResourceClaims: what kube-scheduler allocates is mirrored by a lease, or refused with a reason; both end together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from aliquot.client import WaitUntil
from aliquot.kube.controllers.claims import ClaimController
from aliquot.kube.core import claims, names
from aliquot.kube.core.claims import ClaimRefused, RawClaim
from aliquot.kube.node.core.devices import device_name, resource_slice
from aliquot.kube.node.core.resources import PoolDevice
from tests.coordinator.pool import eventually
from tests.kube.cluster import KubeCluster, kube_cluster
from tests.kube.making import make_pod

VERSION = "resource.k8s.io/v1"
GIB = 1 << 30


@contextlib.asynccontextmanager
async def controller(cluster: KubeCluster) -> AsyncIterator[ClaimController]:
    parts = cluster.extender.parts
    made = ClaimController(parts, again_s=0.1)
    running = asyncio.create_task(made.loop.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def uuids(cluster: KubeCluster, node: str = "node-0") -> list[str]:
    found = await cluster.pool.node(node)
    return [device.uuid for device in found.devices]


async def publish(cluster: KubeCluster, node: str = "node-0") -> list[str]:
    """As the node does."""
    devices = [PoolDevice(uuid, True, 79 * GIB, 100, "A100-80") for uuid in await uuids(cluster, node)]
    kind = cluster.api.store.kind(VERSION, "resourceslices")
    cluster.api.store.create(kind, "", resource_slice(node, "node-uid", devices, 1))
    return [device_name(device.uuid) for device in devices]


def make_claim(cluster: KubeCluster, name: str) -> Any:
    kind = cluster.api.store.kind(VERSION, "resourceclaims")
    return cluster.api.store.create(kind, "default", {"metadata": {"name": name}, "spec": {}})


def claim(cluster: KubeCluster, name: str) -> Any:
    return cluster.api.store.kind(VERSION, "resourceclaims").items.get(("default", name))


def set_status(cluster: KubeCluster, name: str, **status: Any) -> None:
    kind, old = cluster.api.store.kind(VERSION, "resourceclaims"), claim(cluster, name)
    item = {**old, "metadata": {**old["metadata"]}, "status": status}
    cluster.api.store.write(kind, ("default", name), item, "MODIFIED")


def allocate(
    cluster: KubeCluster, name: str, *devices: str, percent: int = 25, memory: str = "8Gi", pod: Any = None
) -> None:
    """As kube-scheduler does."""
    results = [
        {
            "request": "gpu",
            "driver": claims.DRIVER,
            "pool": "node-0",
            "device": device,
            "shareID": f"share-{name}",
            "consumedCapacity": {"percent": str(percent), "memory": memory},
        }
        for device in devices
    ]
    users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}] if pod else []
    set_status(cluster, name, allocation={"devices": {"results": results}}, reservedFor=users)


def said(cluster: KubeCluster, name: str) -> dict[str, str]:
    found: dict[str, str] = claim(cluster, name)["metadata"].get("annotations") or {}
    return found


async def test_an_allocation_becomes_a_lease_exactly_there() -> None:
    async with kube_cluster(1, devices=2) as cluster, controller(cluster):
        devices = await publish(cluster)
        make_claim(cluster, "a")
        allocate(cluster, "a", devices[1])
        await eventually(lambda: names.ASSIGNMENT in said(cluster, "a"), "its assignment")
        assignment = msgspec.json.decode(said(cluster, "a")[names.ASSIGNMENT])
        (part,) = assignment["slices"]
        assert part["device"] == (await uuids(cluster))[1]
        assert (part["share_milli"], part["memory_bytes"]) == (250, 8 * GIB)
        (lease,) = await cluster.leases()
        assert (lease.lease_id, lease.request.name) == (assignment["lease"], "default/a")
        set_status(cluster, "a")
        await cluster.settled(0)
        await eventually(lambda: names.LEASE_ID not in said(cluster, "a"), "nothing said any more")


async def test_what_the_pool_has_given_away_is_refused_until_it_is_free() -> None:
    async with kube_cluster(1) as cluster, controller(cluster):
        (device,) = await publish(cluster)
        pool = cluster.extender.parts.pool
        other = await pool.grant_on("1", "node-0", until=WaitUntil.GRANTED, detached=True, tenant="default")
        make_claim(cluster, "a")
        allocate(cluster, "a", device)
        await eventually(lambda: claims.REFUSED in said(cluster, "a"), "the reason")
        assert names.LEASE_ID not in said(cluster, "a")
        await eventually(lambda: "AliquotClaimRefused" in cluster.events(), "an event")
        await pool.release(other.lease_id)
        await eventually(lambda: names.ASSIGNMENT in said(cluster, "a"), "its assignment")
        assert claims.REFUSED not in said(cluster, "a")


async def test_a_claim_that_went_while_nobody_looked_holds_nothing() -> None:
    async with kube_cluster(1) as cluster:
        (device,) = await publish(cluster)
        async with controller(cluster):
            for name in "ab":
                make_claim(cluster, name)
                allocate(cluster, name, device)
            await cluster.settled(2)
        cluster.api.store.remove(cluster.api.store.kind(VERSION, "resourceclaims"), ("default", "a"))
        async with controller(cluster):
            await cluster.settled(1)
            cluster.api.store.remove(cluster.api.store.kind(VERSION, "resourceclaims"), ("default", "b"))
            await cluster.settled(0)


async def test_a_claim_that_was_allocated_elsewhere_meanwhile_moves() -> None:
    async with kube_cluster(1, devices=2) as cluster:
        devices = await publish(cluster)
        make_claim(cluster, "a")
        allocate(cluster, "a", devices[0])
        async with controller(cluster):
            await eventually(lambda: names.ASSIGNMENT in said(cluster, "a"), "its assignment")
        allocate(cluster, "a", devices[1])
        second = (await uuids(cluster))[1]
        async with controller(cluster):
            await eventually(lambda: second in said(cluster, "a")[names.ASSIGNMENT], "the other device")
            await cluster.settled(1)


async def test_a_lease_that_is_taken_back_ends_the_pods_of_its_claim() -> None:
    """kube-scheduler preempts no pods for claims; the pool does."""
    async with kube_cluster(1) as cluster, controller(cluster):
        (device,) = await publish(cluster)
        pod = make_pod(cluster.api, "p")
        make_claim(cluster, "a")
        allocate(cluster, "a", device, pod=pod)
        await eventually(lambda: names.LEASE_ID in said(cluster, "a"), "its lease")
        await cluster.pool.release(said(cluster, "a")[names.LEASE_ID])
        await eventually(lambda: cluster.pod("p") is None, "its pod to go")
        await eventually(lambda: "AliquotLeaseEnded" in cluster.events(), "the reason")
        await eventually(lambda: claims.REFUSED in said(cluster, "a"), "nothing new for who has ended")
        assert not await cluster.leases()


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([("n", "a", 25, "1Gi"), ("n", "b", 50, "1Gi")], "equal parts"),
        ([("n", "a", 25, "1Gi"), ("m", "b", 25, "1Gi")], "equal parts"),
        ([("n", "a", 25, "1Gi"), ("n", "a", 25, "1Gi")], "several parts of one device"),
        ([("n", "a", 0, "1Gi")], "0 percent"),
        ([("n", "a", 25, "much")], "can't be read"),
    ],
)
def test_what_can_not_be_a_lease(results: list[tuple[str, str, int, str]], why: str) -> None:
    with pytest.raises(ClaimRefused) as caught:
        claims.wanted(raw(results))
    assert why in caught.value.message


def raw(results: list[tuple[str, str, int, str]], driver: str = claims.DRIVER) -> RawClaim:
    found = [
        {"driver": driver, "pool": pool, "device": device, "consumedCapacity": {"percent": percent, "memory": memory}}
        for pool, device, percent, memory in results
    ]
    return msgspec.convert({"status": {"allocation": {"devices": {"results": found}}}}, RawClaim)


def test_what_allocations_come_to() -> None:
    assert claims.wanted(raw([("n", "a", 25, "8Gi")])) == claims.Wanted("0.25,8Gi", "n", ("a",))
    assert claims.wanted(raw([("n", "a", 100, "79Gi"), ("n", "b", 100, "79Gi")])) == claims.Wanted("2", "n", ("a", "b"))
    assert claims.wanted(raw([("n", "a", 25, "8Gi")], driver="other")) is None
    whole = {
        "status": {"allocation": {"devices": {"results": [{"driver": claims.DRIVER, "pool": "n", "device": "a"}]}}}
    }
    assert claims.wanted(msgspec.convert(whole, RawClaim)) == claims.Wanted("1", "n", ("a",))

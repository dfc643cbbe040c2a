"""Claims on a cluster with a stock scheduler: what it allocates is mirrored in the pool, and ends with the claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from aliquot.client import WaitUntil
from aliquot.kube.api import resources
from aliquot.kube.api.errors import KubeConflict, KubeNotFound
from aliquot.kube.controllers.claims import ClaimController
from aliquot.kube.core import names
from aliquot.kube.core.claims import REFUSED
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.core.devices import resource_slice, slice_name
from aliquot.kube.node.core.resources import PoolDevice
from aliquot.v1 import leases_pb2
from tests.coordinator.pool import eventually
from tests.kube.claim_scheduler import ClaimScheduler
from tests.kube.conformance.conftest import Places
from tests.kube.conformance.place import Place

GIB = 1 << 30
DEVICE_CLASSES = resources.Resource("resource.k8s.io/v1", "deviceclasses", namespaced=False)
CLASS = Path(__file__).parents[3] / "deploy" / "kube" / "claims.yaml"


@contextlib.asynccontextmanager
async def claiming(place: Place, places: Places) -> AsyncIterator[None]:
    """The node's devices are published, and the controller of claims runs."""
    with contextlib.suppress(KubeConflict):
        await place.client.post(DEVICE_CLASSES.path(), yaml.safe_load(CLASS.read_text()))
    await publish(place)
    assert place.parts is not None
    parts = place.parts
    controller = ClaimController(parts, again_s=0.2)
    tasks = [asyncio.create_task(controller.loop.run())]
    if places.api is not None:
        tasks.append(asyncio.create_task(ClaimScheduler(places.api).run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(KubeNotFound):
            await place.client.delete(resources.RESOURCE_SLICES.path(name=slice_name(place.nodes[0])))


async def publish(place: Place, *, healthy: bool = True) -> None:
    """As the node does."""
    node = place.nodes[0]
    uid = msgspec.json.decode(await place.client.get(resources.NODES.path(name=node)))["metadata"]["uid"]
    there = (await place.pool.node(node)).devices
    devices = [PoolDevice(device.uuid, healthy, 79 * GIB, 100, "A100-80") for device in there]
    await ApiServer(place.client).publish(lambda generation: resource_slice(node, uid, devices, generation))


async def create(place: Place, name: str, **capacity: str) -> None:
    """A claim and its pod."""
    exactly: dict[str, Any] = {"deviceClassName": "gpu.aliquot.dev"}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    # A cluster may have nodes of others: this test's are meant.
    cel = f"device.attributes['gpu.aliquot.dev'].uuid in {[device.uuid for device in await _devices(place)]}"
    exactly["selectors"] = [{"cel": {"expression": cel.replace("'", '"')}}]
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    await place.client.post(resources.RESOURCE_CLAIMS.path(place.namespace), claim)
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "tolerations": [{"operator": "Exists", "key": "node.kubernetes.io/not-ready"}],
        "terminationGracePeriodSeconds": 0,
    }
    await place.client.post(resources.PODS.path(place.namespace), {"metadata": {"name": name}, "spec": spec})


async def _devices(place: Place) -> Any:
    return (await place.pool.node(place.nodes[0])).devices


async def told(place: Place, name: str) -> dict[str, str]:
    path = resources.RESOURCE_CLAIMS.path(place.namespace, name)
    return msgspec.json.decode(await place.client.get(path))["metadata"].get("annotations") or {}


async def assigned(place: Place, name: str) -> Any:
    async def there() -> Any:
        return (await told(place, name)).get(names.ASSIGNMENT)

    return msgspec.json.decode(await eventually(there, f"the assignment of {name}"))


async def forget(place: Place, name: str) -> None:
    await place.delete(name)
    await place.client.delete(resources.RESOURCE_CLAIMS.path(place.namespace, name))


@pytest.fixture(autouse=True)
async def _has_claims(client: Any) -> None:
    try:
        await client.get(DEVICE_CLASSES.path())
    except KubeNotFound:
        pytest.skip("a cluster before 1.34 has no claims (v1)")


async def test_claims_share_a_device_and_end_with_their_leases(places: Places) -> None:
    async with places() as place, place.extending(), claiming(place, places):
        await create(place, "a", percent="25", memory="8Gi")
        await create(place, "b", percent="50", memory="16Gi")
        found = [await assigned(place, name) for name in "ab"]
        parts = [(said["slices"][0]["share_milli"], said["slices"][0]["memory_bytes"]) for said in found]
        assert parts == [(250, 8 * GIB), (500, 16 * GIB)]
        assert {said["node"] for said in found} == set(place.nodes)
        await place.bound("a", "b")
        await place.settled(2)
        await create(place, "c", percent="50", memory="8Gi")
        await forget(place, "b")
        assert (await assigned(place, "c"))["slices"][0]["share_milli"] == 500
        for name in "ac":
            await forget(place, name)
        await place.settled(0)


async def test_a_claim_without_capacities_gets_a_whole_device(places: Places) -> None:
    async with places(devices=2) as place, place.extending(), claiming(place, places):
        for name in "ab":
            await create(place, name)
        devices = {(await assigned(place, name))["slices"][0]["device"] for name in "ab"}
        assert devices == {device.uuid for device in await _devices(place)}
        leases = (await place.pool.leases.List(leases_pb2.ListRequest())).leases
        assert [part.share_milli for lease in leases for part in lease.slices] == [1000, 1000]
        for name in "ab":
            await forget(place, name)
        await place.settled(0)


async def test_what_the_pool_gave_to_others_is_refused_and_told(places: Places) -> None:
    async with places() as place, place.extending(), claiming(place, places):
        assert place.parts is not None
        pool = place.parts.pool
        other = await pool.grant_on("1", place.nodes[0], until=WaitUntil.GRANTED, detached=True, tenant="others")
        await create(place, "a", percent="25", memory="8Gi")

        async def refused() -> bool:
            return REFUSED in await told(place, "a")

        await eventually(refused, "the reason on the claim")
        await pool.release(other.lease_id)
        await assigned(place, "a")
        await forget(place, "a")
        await place.settled(0)


async def test_a_tainted_device_is_not_allocated(places: Places) -> None:
    async with places() as place, place.extending(), claiming(place, places):
        await publish(place, healthy=False)
        await create(place, "a", percent="25", memory="8Gi")
        await place.settled(0)
        await publish(place)
        await assigned(place, "a")
        await forget(place, "a")
        await place.settled(0)

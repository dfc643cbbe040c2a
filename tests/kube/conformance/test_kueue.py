"""Kueue's part: a Workload that is evicted between its admission and its pods' binding. Kueue itself is played here.

On a cluster without Kueue its two kinds are made as far as they are needed; where it runs, nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.errors import KubeNotFound
from aliquot.kube.api.resources import ADMISSION_CHECKS, CRDS, PODS, WORKLOADS, Resource
from aliquot.kube.controllers.kueue import KueueController
from aliquot.kube.core import kueue, names
from tests.coordinator.pool import eventually
from tests.kube.conformance.conftest import REAL, Places
from tests.kube.conformance.place import Place


def definition(resource: Resource, kind: str) -> dict[str, Any]:
    """A kind of Kueue's, of which anything is taken."""
    group, _, version = resource.version.partition("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    plural = resource.plural
    spec = {
        "group": group,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
        "versions": [served],
    }
    return {
        "apiVersion": CRDS.version,
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": spec,
    }


@pytest.fixture
async def check(client: KubeClient) -> AsyncIterator[str]:
    """An AdmissionCheck of ours; its kind is there for the time of the test."""
    made = []
    for resource, kind in ((WORKLOADS, "Workload"), (ADMISSION_CHECKS, "AdmissionCheck")):
        document = definition(resource, kind)
        try:
            await client.get(CRDS.path(name=document["metadata"]["name"]))
            if REAL:
                pytest.skip("Kueue is there, and would take these Workloads for its own")
        except KubeNotFound:
            await client.post(CRDS.path(), document)
            made.append(document["metadata"]["name"])
    name = f"aliquot-test-{uuid.uuid4().hex[:8]}"

    async def there() -> bool:
        try:
            await client.get(ADMISSION_CHECKS.path())
            await client.get(WORKLOADS.path())
        except KubeNotFound:
            return False
        return True

    await eventually(there, "the kinds to be served")
    document = {
        "apiVersion": ADMISSION_CHECKS.version,
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": kueue.CONTROLLER},
    }
    await client.post(ADMISSION_CHECKS.path(), document)
    yield name
    await client.delete(ADMISSION_CHECKS.path(name=name))
    for each in made:
        await client.delete(CRDS.path(name=each))


@contextlib.asynccontextmanager
async def admitting(place: Place) -> AsyncIterator[None]:
    assert place.parts is not None
    parts = place.parts
    controller = KueueController(parts)
    task = asyncio.create_task(controller.loop.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def set_quota(place: Place, check: str, *, reserved: bool) -> None:
    """As Kueue: with quota reserved the check is pending; without it is cleared."""
    conditions = [{"type": "QuotaReserved", "status": str(reserved)}]
    checks = [{"name": check, "state": "Pending", "message": ""}] if reserved else []
    status = {"conditions": conditions, "admissionChecks": checks}
    path = WORKLOADS.path(place.namespace, "job", "status")
    await place.client.patch(path, {"status": status}, MERGE)


async def ready(place: Place) -> Any:
    """What Kueue is to add to the pods, when the check is Ready."""

    async def updates() -> Any:
        found = msgspec.json.decode(await place.client.get(WORKLOADS.path(place.namespace, "job")))
        states = found["status"].get("admissionChecks") or [{}]
        return states[0].get("podSetUpdates") if states[0].get("state") == "Ready" else None

    (update,) = await eventually(updates, "the check to be Ready")
    return update


async def start(place: Place, name: str, update: Any) -> None:
    """A pod of it, that waits for Kueue to lift its gate."""
    container = {"name": "main", "image": "none", "resources": {"limits": {names.GPU_PERCENT: "100"}}}
    spec = {
        "schedulerName": place.settings.scheduler,
        "containers": [container],
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": name, "labels": update["labels"], "annotations": update["annotations"]}
    await place.client.post(PODS.path(place.namespace), {"metadata": metadata, "spec": spec})


async def lift(place: Place, name: str) -> None:
    await place.client.patch(PODS.path(place.namespace, name), {"spec": {"schedulingGates": None}}, MERGE)


async def test_eviction_between_admission_and_bind(places: Places, check: str) -> None:
    async with places(nodes=2) as place, place.extending(), admitting(place):
        template = {"spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_PERCENT: "100"}}}]}}
        sets = [{"name": "main", "count": 2, "template": template}]
        document = {
            "apiVersion": WORKLOADS.version,
            "kind": "Workload",
            "metadata": {"name": "job"},
            "spec": {"podSets": sets},
        }
        await place.client.post(WORKLOADS.path(place.namespace), document)
        await set_quota(place, check, reserved=True)
        update = await ready(place)
        await place.settled(1)
        for name in ("p0", "p1"):
            await start(place, name, update)
        # Evicted before any of them is bound: the reservation goes, and others may have the room.
        await set_quota(place, check, reserved=False)
        await place.settled(0)
        for name in ("p0", "p1"):
            await lift(place, name)
        await place.create("other", {names.GPU: 1})
        where = await place.bound("other")
        assert not where["p0"]
        assert not where["p1"]
        await place.audit()
        await place.delete("other")
        await place.settled(0)
        # Admitted again, the pods that are still there find their places.
        await set_quota(place, check, reserved=True)
        await ready(place)
        where = await place.bound("p0", "p1")
        assert set(where.values()) == set(place.nodes)
        await place.audit()
        await place.client.delete(WORKLOADS.path(place.namespace, "job"))
        await place.settled(0)

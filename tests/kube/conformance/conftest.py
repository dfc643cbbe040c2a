"""The cluster of the suite: a real one where KUBECONFIG names it, else the fake one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster, from_kubeconfig
from tests.coordinator.pool import eventually
from tests.kube.conformance.place import Place, make_node, place
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api

REAL = bool(os.environ.get("KUBECONFIG"))


@pytest.fixture
async def api() -> AsyncIterator[FakeApi | None]:
    """The fake one, where there is no real one."""
    if REAL:
        yield None
        return
    async with fake_api() as api:
        yield api


@pytest.fixture
async def client(api: FakeApi | None) -> AsyncIterator[KubeClient]:
    """Of whoever may do everything."""
    cluster = from_kubeconfig() if api is None else Cluster(api.url, lambda: ADMIN)
    async with KubeClient(cluster) as client:
        yield client


@pytest.fixture
async def namespace(client: KubeClient) -> AsyncIterator[str]:
    """One of the test's own; on a real cluster it is ready for pods when it has its service account."""
    name = f"aliquot-test-{uuid.uuid4().hex[:8]}"
    await client.post(resources.NAMESPACES.path(), {"metadata": {"name": name}})
    if REAL:
        path = f"/api/v1/namespaces/{name}/serviceaccounts"
        await eventually(lambda: _has_items(client, path), "a service account")
    yield name
    await client.delete(resources.NAMESPACES.path(name=name))


async def _has_items(client: KubeClient, path: str) -> bool:
    return b'"name":"default"' in await client.get(path)


@pytest.fixture
async def priority(client: KubeClient) -> AsyncIterator[str]:
    """A PriorityClass above the usual one."""
    name = f"aliquot-test-{uuid.uuid4().hex[:8]}"
    await client.post(resources.PRIORITY_CLASSES.path(), {"metadata": {"name": name}, "value": 1000})
    yield name
    await client.delete(resources.PRIORITY_CLASSES.path(name=name))


@dataclass
class Places:
    """Makes the places of a test."""

    client: KubeClient
    namespace: str
    api: FakeApi | None

    def __call__(self, *, nodes: int = 1, devices: int = 1) -> contextlib.AbstractAsyncContextManager[Place]:
        """A pool with a scheduler."""
        return place(self.client, self.namespace, self.api, nodes=nodes, devices=devices)

    async def make_node(self, name: str, devices: int) -> None:
        """The node of that name, anew."""
        await make_node(self.client, name, devices)


@pytest.fixture
def places(client: KubeClient, namespace: str, api: FakeApi | None) -> Places:
    """Of this test's cluster."""
    if REAL and not os.environ.get("KUBE_SCHEDULER"):
        pytest.skip("KUBE_SCHEDULER names no kube-scheduler to start")
    return Places(client, namespace, api)

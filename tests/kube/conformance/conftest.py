"""The cluster of the suite: a real one where KUBECONFIG names it, else the fake one."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator

import pytest

from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster, from_kubeconfig
from tests.kube.fake_api.server import ADMIN, fake_api


@pytest.fixture
async def client() -> AsyncIterator[KubeClient]:
    """Of whoever may do everything."""
    if os.environ.get("KUBECONFIG"):
        async with KubeClient(from_kubeconfig()) as client:
            yield client
        return
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        yield client


@pytest.fixture
async def namespace(client: KubeClient) -> AsyncIterator[str]:
    """One of the test's own."""
    name = f"aliquot-test-{uuid.uuid4().hex[:8]}"
    await client.post(resources.NAMESPACES.path(), {"metadata": {"name": name}})
    yield name
    await client.delete(resources.NAMESPACES.path(name=name))

"""All parts of one process of ours, put together: the extender's, and the controllers'."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec

from aliquot.client import AsyncPool
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.objects import Events
from aliquot.kube.controllers.reconciler import Reconciler
from aliquot.kube.core.reconciling import Patience
from aliquot.kube.extender.scheduling import Extender
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.parts import Parts
from aliquot.kube.holding.pods import PodIndex
from aliquot.kube.holding.requests import Requests
from aliquot.kube.holding.telling import Teller
from aliquot.kube.settings import Settings


async def cluster_id(client: KubeClient, settings: Settings) -> str:
    """What leases of this cluster are labelled with. Raises KubeError."""
    if settings.cluster:
        return settings.cluster
    found = msgspec.json.decode(await client.get(resources.NAMESPACES.path(name="kube-system")))
    return str(found["metadata"]["uid"])


async def make_parts(client: KubeClient, pool: AsyncPool, settings: Settings, component: str) -> Parts:
    """Raises KubeError where the cluster can't be identified."""
    cluster = await cluster_id(client, settings)
    return Parts(
        client=client,
        pool=pool,
        book=LeaseBook(pool, cluster),
        pods=PodIndex(client, settings.scheduler, silence_s=settings.silence / 1000),
        requests=Requests(client, cluster, settings.rules),
        teller=Teller(Events(client, component)),
        patience=Patience(settings.unbound, settings.gang_wait),
    )


def make_extender(parts: Parts) -> tuple[Extender, Reconciler]:
    """The extender, with a reconciler that knows what it is binding."""
    extender = Extender(parts)
    return extender, Reconciler(parts, under_way=extender.under_way)


@contextlib.asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Future[Any]]:
    """Tasks that run meanwhile. The future ends when one of them fails: none of them is to."""
    tasks = [asyncio.ensure_future(one) for one in work]
    failed: asyncio.Future[Any] = asyncio.gather(*tasks)
    try:
        yield failed
    finally:
        for task in (failed, *tasks):
            task.cancel()
        await asyncio.gather(failed, *tasks, return_exceptions=True)


def following(parts: Parts) -> list[Coroutine[Any, Any, None]]:
    """What follows pods and leases, and writes events."""
    return [parts.book.run(), parts.pods.run(), parts.teller.run()]

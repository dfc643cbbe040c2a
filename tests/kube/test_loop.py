"""The loop of controllers, by itself: a kind of objects that own leases, an API server and a pool that fail at will."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from aliquot.client import PoolError, WaitUntil
from aliquot.kube.api.errors import KubeUnavailable
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.resources import Resource
from aliquot.kube.controllers.loop import OwnerLoop, Owning
from aliquot.kube.core.leases import labels_of
from aliquot.kube.core.shapes import RawMeta
from tests.coordinator.pool import eventually
from tests.kube.cluster import CLUSTER, KubeCluster, kube_cluster

VERSION = "example.com/v1"
WIDGETS = Resource(VERSION, "widgets")
OWNER = "widget"


class Widget(msgspec.Struct):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)


def uid_of_gang(gang: str) -> str:
    return gang.removeprefix("widget-") if gang.startswith("widget-") else ""


class Controller:
    """Counts looks, and fails as long as it is told to."""

    def __init__(self, cluster: KubeCluster, every_s: float) -> None:
        parts = cluster.extender.parts
        self.looks: list[str] = []
        self.failing: dict[str, Exception | None] = {}
        """By name: raised, or None for not yet done."""
        self.widgets: Informer[Widget, Widget] = Informer(parts.client, WIDGETS, Widget, lambda one: one)
        owning: Owning[Widget] = Owning("Widget", OWNER, lambda one: one.metadata.uid, uid_of_gang)
        self.loop = OwnerLoop(parts, self.widgets, owning, self.look, every_s=every_s, again_s=0.02)

    async def look(self, one: Widget) -> bool:
        self.looks.append(one.metadata.name)
        if one.metadata.name not in self.failing:
            return True
        error = self.failing[one.metadata.name]
        if error is not None:
            raise error
        return False


@contextlib.asynccontextmanager
async def controlling(cluster: KubeCluster, every_s: float = 3600.0) -> AsyncIterator[Controller]:
    cluster.api.rules.clear()  # no role of the chart knows widgets
    made = Controller(cluster, every_s)
    task = asyncio.create_task(made.loop.run())
    try:
        await eventually(lambda: made.loop.passes, "the first pass")
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make(cluster: KubeCluster, name: str) -> Any:
    kind = cluster.api.store.serve(VERSION, "widgets", "Widget")
    return cluster.api.store.create(kind, "default", {"metadata": {"name": name}})


def remove(cluster: KubeCluster, name: str) -> None:
    cluster.api.store.remove(cluster.api.store.kind(VERSION, "widgets"), ("default", name))


async def grant(cluster: KubeCluster, widget: Any) -> None:
    uid, name = widget["metadata"]["uid"], widget["metadata"]["name"]
    labels = labels_of(CLUSTER, "default", gang=f"widget-{uid}", owner=OWNER)
    await cluster.extender.parts.pool.grant_on(
        "0.25", "node-0", until=WaitUntil.GRANTED, key=uid, tenant="t", detached=True, name=f"default/{name}",
        labels=labels,
    )  # fmt: skip
    await eventually(
        lambda: any(lease.gang == f"widget-{uid}" for lease in cluster.extender.parts.book), "the book to know it"
    )


@pytest.mark.parametrize("error", [None, KubeUnavailable("away"), PoolError("away")])
async def test_what_fails_is_looked_at_again_and_others_are_not_held_up(error: Exception | None) -> None:
    async with kube_cluster(1) as cluster:
        make(cluster, "bad")
        async with controlling(cluster) as controller:
            controller.failing["bad"] = error
            cluster.api.store.write(
                controller_kind(cluster), ("default", "bad"), {**one(cluster, "bad"), "spec": {}}, "MODIFIED"
            )
            await eventually(lambda: controller.looks.count("bad") >= 4, "several tries")
            make(cluster, "good")
            await eventually(lambda: "good" in controller.looks, "another's turn")
            del controller.failing["bad"]
            seen = len(controller.looks)
            await eventually(lambda: "bad" in controller.looks[seen:], "a last look")
            make(cluster, "later")
            await eventually(lambda: "later" in controller.looks, "what came afterwards")
            assert controller.looks[seen:].count("bad") == 1


def controller_kind(cluster: KubeCluster) -> Any:
    return cluster.api.store.kind(VERSION, "widgets")


def one(cluster: KubeCluster, name: str) -> Any:
    item = controller_kind(cluster).items["default", name]
    return {**item, "metadata": {**item["metadata"]}}


async def test_an_object_is_looked_at_when_a_lease_of_it_changes() -> None:
    async with kube_cluster(1) as cluster:
        widget = make(cluster, "a")
        make(cluster, "b")
        async with controlling(cluster) as controller:
            await eventually(lambda: sorted(controller.looks) == ["a", "b"], "both")
            await grant(cluster, widget)
            await eventually(lambda: controller.looks.count("a") >= 2, "its lease's change")
            assert controller.looks.count("b") == 1


async def test_all_are_looked_at_from_time_to_time() -> None:
    async with kube_cluster(1) as cluster:
        make(cluster, "a")
        async with controlling(cluster, every_s=0.05) as controller:
            await eventually(lambda: controller.looks.count("a") >= 3, "three passes")


async def test_what_a_deleted_object_had_is_given_back_also_when_the_pool_was_away() -> None:
    async with kube_cluster(1) as cluster:
        widget, other = make(cluster, "a"), make(cluster, "b")
        async with controlling(cluster) as controller:
            for each in (widget, other):
                await grant(cluster, each)
            sdk = cluster.extender.parts.pool
            release, refused = sdk.release, 0

            async def failing(*_: Any, **__: Any) -> Any:
                nonlocal refused
                refused += 1
                raise PoolError("away")

            sdk.release = failing  # type: ignore[method-assign]
            remove(cluster, "a")
            await eventually(lambda: refused >= 3, "several tries")
            assert len(await cluster.leases()) == 2
            sdk.release = release  # type: ignore[method-assign]
            await cluster.settled(1)
            assert controller.loop.passes == 1


async def test_what_went_while_nobody_looked_is_given_back_and_what_is_made_again_is_another() -> None:
    async with kube_cluster(1) as cluster:
        widget, stays = make(cluster, "a"), make(cluster, "stays")
        for each in (widget, stays):
            await grant(cluster, each)
        remove(cluster, "a")
        make(cluster, "a")
        async with controlling(cluster):
            await cluster.settled(1)
        (lease,) = await cluster.leases()
        assert lease.request.name == "default/stays"


async def test_nothing_is_given_back_on_the_word_of_an_api_server_that_is_away() -> None:
    async with kube_cluster(1) as cluster:
        widget = make(cluster, "a")
        async with controlling(cluster, every_s=0.05) as controller:
            await grant(cluster, widget)
            cluster.api.faults.frozen.clear()
            cluster.api.drop_watches()
            passes = controller.loop.passes
            await eventually(lambda: controller.loop.passes >= passes + 3, "passes without it")
            cluster.api.faults.frozen.set()
            assert len(await cluster.leases()) == 1

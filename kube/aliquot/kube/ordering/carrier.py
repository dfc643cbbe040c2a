"""Carries orders of nodes out: takes them, writes what autoscalers of nodes follow, and says which nodes have come.

What there should be in the cluster is made anew from the open orders at every look, and applied: a look that was cut
off, or that two processes of one name make at a time, changes nothing twice. An order that ends, however, takes its
placeholder or its ProvisioningRequest with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aliquot.client import AsyncPool, Conflict, InvalidRequest, NotFound, PoolError
from aliquot.client.supply import NodeOrder, NodeShape, OrderState, OrderWay, Supply
from aliquot.kube.api import resources
from aliquot.kube.api.client import APPLY, KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound, KubeRefused
from aliquot.kube.api.resources import Resource
from aliquot.kube.core import ordering

log = logging.getLogger(__name__)

_FOR_S: Final = 3_600
_ORDERS_MAX: Final = 64
_PAGE: Final = 500


class Carrier:
    """See the module's docstring. Processes for one cluster take orders under one name."""

    def __init__(self, client: KubeClient, pool: AsyncPool, means: ordering.Means) -> None:
        self._client = client
        self._pool = pool
        self._name = means.taker
        self._means = means

    async def run(self, every_s: float, stop: asyncio.Event) -> None:
        """Look, again and again, until it is told to stop."""
        while not stop.is_set():
            try:
                await self.look()
            except (KubeError, PoolError) as error:
                log.warning("orders of nodes wait: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stop.wait()

    async def look(self) -> int:
        """Bring the cluster to what is ordered now; how many orders are at work. Raises KubeError, PoolError."""
        await self._pool.supply.take(self._name, orders_max=_ORDERS_MAX, for_s=_FOR_S)
        found = await self._pool.supply.get()
        nodes = await self._nodes()
        leaving = ordering.mine(found.orders, self._name, OrderWay.REMOVE)
        await self._protect(found, nodes)
        for order in leaving:
            if order.state is OrderState.TAKEN:
                await self._send_away(order, nodes.get(order.node_name))
        coming = ordering.mine(found.orders, self._name, OrderWay.ADD)
        shapes = {shape.name: shape for shape in found.spec.shapes}
        if self._means.provisioning:
            await self._by_requests(coming, shapes, nodes)
        else:
            await self._by_placeholders(coming, shapes, nodes)
        known = [node.name for node in found.nodes]
        for number, name in ordering.matched(coming, nodes.values(), known).items():
            log.info("order-%d: node %s has come", number, name)
            await self._say(number, accepted=True, node_name=name)
        return len(coming) + len(leaving)

    # -- nodes

    async def _nodes(self) -> dict[str, ordering.KubeNode]:
        found: dict[str, ordering.KubeNode] = {}
        token = ""
        while True:
            page = msgspec.json.decode(
                await self._client.get(resources.NODES.path(), {"limit": str(_PAGE), "continue": token})
            )
            for item in page.get("items") or ():
                meta = item["metadata"]
                labels = meta.get("labels") or {}
                found[meta["name"]] = ordering.KubeNode(
                    meta["name"],
                    labels.get(ordering.SHAPE_LABEL, ""),
                    _milliseconds(meta.get("creationTimestamp", "")),
                    meta.get("annotations") or {},
                    karpenter=ordering.KARPENTER in labels,
                )
            token = (page.get("metadata") or {}).get("continue", "")
            if not token:
                return found

    async def _protect(self, found: Supply, nodes: Mapping[str, ordering.KubeNode]) -> None:
        """Nodes with leases, and nodes of shapes that the pool has not ordered away, are left alone by autoscalers."""
        going = {order.node_name for order in found.orders if order.way is OrderWay.REMOVE}
        wanted = {node.name for node in found.nodes if node.leases or node.name not in going}
        wanted |= {order.node_name for order in found.orders if order.way is OrderWay.ADD}
        async for node in self._pool.nodes(with_devices=False):
            if node.slices:
                wanted.add(node.name)
        for name, seen in nodes.items():
            patch = ordering.protection(seen, wanted=name in wanted)
            if patch is not None:
                with contextlib.suppress(KubeNotFound):
                    await self._client.patch(resources.NODES.path(name=name), patch)

    async def _send_away(self, order: NodeOrder, node: ordering.KubeNode | None) -> None:
        """Its protection is gone: an autoscaler ends it when it is empty. Karpenter ends one whose Node is deleted."""
        if node is not None and node.karpenter:
            with contextlib.suppress(KubeNotFound):
                await self._client.delete(resources.NODES.path(name=node.name))
        await self._say(order.number, accepted=True)

    # -- placeholders

    async def _by_placeholders(
        self, coming: list[NodeOrder], shapes: Mapping[str, NodeShape], nodes: Mapping[str, ordering.KubeNode]
    ) -> None:
        wanted = Counter(order.shape for order in coming)
        there = await self._ours(resources.DEPLOYMENTS)
        if not wanted and not there:
            return
        path = resources.PRIORITY_CLASSES.path(name=ordering.PLACEHOLDER)
        await self._client.patch(path, ordering.priority_class(), APPLY, force=True)
        for name, item in there.items():
            shape = (item["metadata"].get("labels") or {}).get(ordering.SHAPE_LABEL, "")
            if shape not in shapes:  # not on offer any more
                await self._remove(resources.DEPLOYMENTS, name)
            elif item["spec"].get("replicas", 1) > wanted[shape]:
                await self._free_first(shape, {order.node_name for order in coming}, nodes)
        for shape_name, shape in shapes.items():
            name = ordering.placeholder_name(shape_name, self._means)
            if not wanted[shape_name] and name not in there:
                continue
            document = ordering.placeholders(shape, wanted[shape_name], self._means)
            mine = [order for order in coming if order.shape == shape_name and order.state is OrderState.TAKEN]
            try:
                place = resources.DEPLOYMENTS.path(self._means.namespace, name)
                await self._client.patch(place, document, APPLY, force=True)
            except KubeRefused as error:
                for order in mine:
                    await self._say(order.number, accepted=False, problem=str(error))
                continue
            for order in mine:
                reference = f"Deployment {self._means.namespace}/{name}"
                await self._say(order.number, accepted=True, reference=reference)

    async def _free_first(self, shape: str, missing: set[str], nodes: Mapping[str, ordering.KubeNode]) -> None:
        """Placeholders on nodes that have come go first when there are to be fewer."""
        for name, item in (await self._ours(resources.PODS)).items():
            labels = item["metadata"].get("labels") or {}
            on = (item.get("spec") or {}).get("nodeName", "")
            if labels.get(ordering.SHAPE_LABEL) == shape and on in nodes and on not in missing:
                patch = {"metadata": {"annotations": {ordering.DELETION_COST: "-1000"}}}
                with contextlib.suppress(KubeNotFound):
                    await self._client.patch(resources.PODS.path(self._means.namespace, name), patch)

    # -- ProvisioningRequests

    async def _by_requests(
        self, coming: list[NodeOrder], shapes: Mapping[str, NodeShape], nodes: Mapping[str, ordering.KubeNode]
    ) -> None:
        there = await self._ours(resources.PROVISIONING_REQUESTS)
        kept: set[str] = set()
        for order in coming:
            shape, name = shapes.get(order.shape), ordering.request_name(order)
            if shape is None:
                continue
            kept.add(name)
            if name not in there:
                if order.state is OrderState.TAKEN:
                    await self._request(order, shape)
                continue
            how = ordering.progress(there[name])
            if how.problem and order.node_name not in nodes:
                kept.discard(name)
                await self._say(order.number, accepted=False, problem=how.problem)
            elif how.provisioned and order.state is OrderState.TAKEN:
                reference = f"ProvisioningRequest {self._means.namespace}/{name}"
                await self._say(order.number, accepted=True, reference=reference)
        for name in there.keys() - kept:
            await self._remove(resources.PROVISIONING_REQUESTS, name)
            await self._remove(resources.POD_TEMPLATES, name)

    async def _request(self, order: NodeOrder, shape: NodeShape) -> None:
        namespace = self._means.namespace
        path = resources.PRIORITY_CLASSES.path(name=ordering.PLACEHOLDER)
        await self._client.patch(path, ordering.priority_class(), APPLY, force=True)
        template, request = ordering.provisioning(order, shape, self._means)
        try:
            for resource, document in (
                (resources.POD_TEMPLATES, template),
                (resources.PROVISIONING_REQUESTS, request),
            ):
                with contextlib.suppress(KubeConflict):
                    await self._client.post(resource.path(namespace), document)
        except KubeRefused as error:
            await self._say(order.number, accepted=False, problem=str(error))

    # -- both

    async def _ours(self, resource: Resource) -> dict[str, Any]:
        """Objects of ours in the namespace, by name."""
        chosen = {"labelSelector": ordering.selector(self._means)}
        answer = await self._client.get(resource.path(self._means.namespace), chosen)
        return {item["metadata"]["name"]: item for item in msgspec.json.decode(answer)["items"] or ()}

    async def _remove(self, resource: Resource, name: str) -> None:
        with contextlib.suppress(KubeNotFound):
            await self._client.delete(resource.path(self._means.namespace, name))

    async def _say(self, number: int, **said: Any) -> None:  # noqa: ANN401 - what `report` takes
        try:
            await self._pool.supply.report(number, self._name, **said)
        except (Conflict, NotFound, InvalidRequest) as error:
            log.warning("order-%d: %s", number, error)


def _milliseconds(text: str) -> int:
    """A time of Kubernetes; 0 where there is none."""
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000) if text else 0

"""What the node asks of the API server. Calls raise KubeError; iterators go on after a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from aliquot.common.tasks import beside
from aliquot.kube.api import objects, resources
from aliquot.kube.api.client import STRATEGIC, KubeClient
from aliquot.kube.api.errors import KubeInvalid, KubeNotFound
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.resources import Resource
from aliquot.kube.core.claims import RawClaim
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.node.core.devices import same_devices
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import Condition, NodeRecord, Pod

R = TypeVar("R")
K = TypeVar("K")


class _Security(msgspec.Struct, rename="camel", gc=False):
    run_as_user: int | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    security_context: _Security | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    security_context: _Security | None = None


class _State(msgspec.Struct, gc=False):
    running: dict[str, Any] | None = None


class _ContainerStatus(msgspec.Struct, gc=False):
    container_id: str = msgspec.field(name="containerID", default="")
    state: _State | None = None


class _Status(msgspec.Struct, rename="camel", gc=False):
    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct, gc=False):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _NodeStatus(msgspec.Struct, gc=False):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class _Node(msgspec.Struct, gc=False):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _SliceSpec(msgspec.Struct, rename="camel", gc=False):
    driver: str = ""
    node_name: str | None = None


class _Slice(msgspec.Struct, gc=False):
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


class _Slices(msgspec.Struct, gc=False):
    items: list[_Slice]


class ApiServer:
    """Use from one event loop."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def pods_of_node(self, node: str) -> AsyncIterator[Mapping[str, Pod]]:
        """All pods of a node by uid, complete, now and whenever something has changed."""
        async for pods in self._followed(resources.PODS, _Pod, _pod, f"spec.nodeName={node}"):
            yield {pod.identity.uid: pod for pod in pods}

    async def node_record(self, node: str) -> AsyncIterator[NodeRecord | None]:
        """The Node now and whenever it has changed; None while it is not registered."""
        async for nodes in self._followed(resources.NODES, _Node, _node, f"metadata.name={node}"):
            yield nodes.get(node)

    async def _followed(
        self, resource: Resource, shape: type[R], keep: Callable[[R], K | None], fields: str
    ) -> AsyncIterator[Informer[R, K]]:
        """The objects that there are, and again after each change."""
        changed = asyncio.Event()
        informer: Informer[R, K] = Informer(
            self._client, resource, shape, keep, fields=fields, on_change=lambda key, before, after: changed.set()
        )
        async with beside(f"follow {informer.resource.plural}", informer.run()):
            await informer.synced.wait()
            while True:
                changed.clear()
                yield informer
                await changed.wait()

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name as it is now, not from a cache; None: there is none."""
        found = await self._client.find(resources.PODS.path(namespace, name), _Pod)
        return None if found is None else _pod(found)

    async def claim(self, namespace: str, name: str) -> RawClaim | None:
        """The ResourceClaim of that name as it is now, not from a cache; None: there is none."""
        return await self._client.find(resources.RESOURCE_CLAIMS.path(namespace, name), RawClaim)

    async def publish(self, make: Callable[[int], Mapping[str, Any]]) -> None:
        """Put a ResourceSlice in the place of the one by its name, unless it says the same. `make(generation)` makes
        it; the generation rises with each that differs.
        """
        wanted = dict(make(1))
        path = resources.RESOURCE_SLICES.path(name=wanted["metadata"]["name"])
        there = await self._client.find(path, dict[str, Any])
        if there is None:
            await self._client.post(resources.RESOURCE_SLICES.path(), wanted)
            return
        generation = int(there["spec"]["pool"]["generation"])
        if same_devices(there["spec"], make(generation)["spec"]):
            return
        wanted = dict(make(generation + 1))
        wanted["metadata"] = {**wanted["metadata"], "resourceVersion": there["metadata"]["resourceVersion"]}
        await self._client.put(path, wanted)

    async def foreign_drivers(self, node: str) -> frozenset[str]:
        """Drivers that have ResourceSlices for this node; a cluster without ResourceSlices has none."""
        of_node = {"fieldSelector": f"spec.nodeName={node}"}
        found = await self._client.find(resources.RESOURCE_SLICES.path(), _Slices, of_node)
        slices = found.items if found is not None else ()
        return frozenset(each.spec.driver for each in slices if each.spec.node_name == node)

    async def patch_node_status(self, node: str, amounts: Mapping[str, str], condition: Condition) -> None:
        """Set capacity and allocatable of these resources, and a condition; the rest of the status stays."""
        status = {"capacity": dict(amounts), "allocatable": dict(amounts), "conditions": [_written(condition)]}
        path = resources.NODES.path(name=node, subresource="status")
        await self._client.patch(path, {"status": status}, STRATEGIC)

    async def patch_pod_condition(self, pod: PodIdentity, condition: Condition) -> None:
        """Set one condition of a pod, if it is still that pod; the rest of its status stays."""
        try:
            await objects.patch_pod_condition(self._client, pod.namespace, pod.name, pod.uid, _written(condition))
        except (KubeNotFound, KubeInvalid):
            return


def _written(condition: Condition) -> dict[str, str]:
    return {**msgspec.to_builtins(condition), "lastTransitionTime": objects.now_text()}


def _conditions(found: list[Condition] | None) -> dict[str, tuple[str, str, str]]:
    return {each.type: (each.status, each.reason or "", each.message or "") for each in found or []}


def _pod(raw: _Pod) -> Pod:
    meta, spec, status = raw.metadata, raw.spec, raw.status
    containers = [*(spec.containers or []), *(spec.init_containers or [])]
    contexts = [spec.security_context, *(each.security_context for each in containers)]
    users = {each.run_as_user for each in contexts if each is not None and each.run_as_user is not None}
    running = [
        each.container_id
        for each in [*(status.container_statuses or []), *(status.init_container_statuses or [])]
        if each.container_id and each.state is not None and each.state.running is not None
    ]
    return Pod(
        identity=PodIdentity(meta.namespace, meta.name, meta.uid),
        node=spec.node_name,
        annotations=meta.annotations or {},
        phase=status.phase,
        users=tuple(sorted(users)),
        container_ids=tuple(running),
        conditions=_conditions(status.conditions),
    )


def _node(raw: _Node) -> NodeRecord:
    status = raw.status
    return NodeRecord(raw.metadata.uid, status.capacity or {}, status.allocatable or {}, _conditions(status.conditions))

"""An API server in memory: the node's part is told what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aliquot.kube.api.errors import KubeUnavailable
from aliquot.kube.core.claims import RawClaim
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.core.devices import same_devices
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import Condition, NodeRecord, Pod


@dataclass
class FakeCluster(ApiServer):
    """`away`: it does not answer. Watches then tell nothing."""

    pods: dict[str, Pod] = field(default_factory=dict)
    node: NodeRecord | None = field(default_factory=lambda: NodeRecord("node-1"))
    drivers: frozenset[str] = frozenset()
    claims: dict[tuple[str, str], RawClaim] = field(default_factory=dict)
    slice: Mapping[str, Any] | None = None
    away: bool = False
    patches: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _version: int = 0

    async def change(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def put(self, pod: Pod) -> None:
        self.pods[pod.identity.uid] = pod
        await self.change()

    async def update(self, uid: str, **changed: object) -> None:
        await self.put(replace(self.pods[uid], **changed))  # type: ignore[arg-type]

    async def delete(self, uid: str) -> None:
        del self.pods[uid]
        await self.change()

    # what the node asks

    async def pods_of_node(self, node: str) -> AsyncIterator[Mapping[str, Pod]]:
        async for _ in self._versions():
            yield dict(self.pods)

    async def node_record(self, node: str) -> AsyncIterator[NodeRecord | None]:
        async for _ in self._versions():
            yield self.node

    async def pod(self, namespace: str, name: str) -> Pod | None:
        self._answer()
        wanted = (namespace, name)
        return next((p for p in self.pods.values() if (p.identity.namespace, p.identity.name) == wanted), None)

    async def claim(self, namespace: str, name: str) -> RawClaim | None:
        self._answer()
        return self.claims.get((namespace, name))

    async def publish(self, make: Callable[[int], Mapping[str, Any]]) -> None:
        self._answer()
        if self.slice is None:
            self.slice = make(1)
        elif not same_devices(self.slice["spec"], make(1)["spec"]):
            self.slice = make(self.slice["spec"]["pool"]["generation"] + 1)

    async def foreign_drivers(self, node: str) -> frozenset[str]:
        self._answer()
        return self.drivers

    async def patch_node_status(self, node: str, resources: Mapping[str, str], condition: Condition) -> None:
        self._answer()
        self.patches += 1
        if self.node is not None:
            said = (condition.status, condition.reason or "", condition.message or "")
            self.node = replace(
                self.node,
                capacity={**self.node.capacity, **resources},
                allocatable={**self.node.allocatable, **resources},
                conditions={**self.node.conditions, condition.type: said},
            )
        await self.change()

    async def patch_pod_condition(self, pod: PodIdentity, condition: Condition) -> None:
        self._answer()
        found = self.pods.get(pod.uid)
        if found is not None:
            said = (condition.status, condition.reason or "", condition.message or "")
            await self.update(pod.uid, conditions={**found.conditions, condition.type: said})

    def _answer(self) -> None:
        if self.away:
            raise KubeUnavailable("the API server does not answer")

    async def _versions(self) -> AsyncIterator[int]:
        seen = -1
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != seen and not self.away)  # noqa: B023
                seen = self._version
            yield seen

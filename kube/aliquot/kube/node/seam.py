"""What the node asks of an API server. Whoever talks to one implements `Cluster`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aliquot.common.errors import AliquotError
from aliquot.kube.core.claims import RawClaim
from aliquot.kube.node.core.identity import PodIdentity

CONDITION = "aliquot.dev/Enforced"
"""Of a pod: whether its part of a device is enforced, by which tier, or why not."""
NODE_CONDITION = "aliquot.dev/SoleOwner"
"""Of a node: whether nobody else gives out its GPUs."""


class ClusterUnreachable(AliquotError):
    """The API server does not answer, or not in time."""

    reason = "CLUSTER_UNREACHABLE"


@dataclass(frozen=True, slots=True)
class Pod:
    """What matters here of a pod of this node."""

    identity: PodIdentity
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Pending"
    users: tuple[int, ...] = ()
    """`runAsUser` of the pod and its containers, as far as they say."""
    container_ids: tuple[str, ...] = ()
    """Of containers that run, such as `containerd://0123…`."""
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """By type: status, reason and message."""

    @property
    def ended(self) -> bool:
        """Whether no container of it will run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What matters here of the Node."""

    uid: str
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """By type: status, reason and message."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a pod or a node."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    """A word in CamelCase."""
    message: str


class Cluster(Protocol):
    """An API server. Calls raise `ClusterUnreachable`; iterators go on by themselves when a connection breaks."""

    def pods_of_node(self, node: str) -> AsyncIterator[Mapping[str, Pod]]:
        """All pods of a node by uid, complete, now and whenever something has changed."""

    def node_record(self, node: str) -> AsyncIterator[NodeRecord | None]:
        """The Node now and whenever it has changed; None while it is not registered."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of that name as it is now, not from a cache; None: there is none."""

    async def claim(self, namespace: str, name: str) -> RawClaim | None:
        """The ResourceClaim of that name as it is now, not from a cache; None: there is none."""

    async def publish(self, make: Callable[[int], Mapping[str, Any]]) -> None:
        """Put a ResourceSlice in the place of the one by its name, unless it says the same. `make(generation)` makes
        it; the generation rises with each that differs.
        """

    async def foreign_drivers(self, node: str) -> frozenset[str]:
        """Drivers that have ResourceSlices for this node."""

    async def patch_node_status(self, node: str, resources: Mapping[str, str], condition: Condition) -> None:
        """Set capacity and allocatable of these resources, and a condition; the rest of the status stays."""

    async def patch_pod_condition(self, pod: PodIdentity, condition: Condition) -> None:
        """Set one condition of a pod, if it is still that pod; the rest of its status stays."""

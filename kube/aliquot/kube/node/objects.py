"""What matters on a node of pods and of the Node, as the API server has them, and conditions that are written there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from aliquot.kube.node.identity import PodIdentity

CONDITION = "aliquot.dev/Enforced"
"""Of a pod: whether its part of a device is enforced, by which tier, or why not."""
NODE_CONDITION = "aliquot.dev/SoleOwner"
"""Of a node: whether nobody else gives out its GPUs."""


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


class Condition(msgspec.Struct, frozen=True, gc=False):
    """A condition of a pod or a node, as the API server has it."""

    type: str
    status: str = ""
    """`True`, `False` or `Unknown`."""
    reason: str | None = None
    """A word in CamelCase."""
    message: str | None = None

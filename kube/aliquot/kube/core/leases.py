"""A lease of the pool as this cluster sees it: which pod, gang or job it is for, and where its members are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from aliquot.kube.core import names
from aliquot.kube.core.pods import AssignedSlice, Assignment

ENDED: Final = "ENDED"
HOLDING: Final = frozenset({"GRANTED", "ACTIVE", "UNREACHABLE"})
"""States in which a pod may start or go on under a lease."""


@dataclass(frozen=True, slots=True)
class Part:
    """A lease's part on one device."""

    node: str
    """Its name, which is the Kubernetes node's."""
    member: int
    device: str
    share_milli: int
    memory_bytes: int
    tier: str = ""
    gone: bool = False
    shed: bool = False
    """Its lease is elastic and gives it back."""


@dataclass(frozen=True, slots=True)
class KubeLease:
    """What is kept of a lease of ours."""

    lease_id: str
    state: str
    granted_ms: int
    """When it was granted (or asked for, while it waits); as a book keeps it: when that was first seen here."""
    namespace: str
    pod_uid: str
    gang: str
    owner: str
    attempt: int
    size: int
    """Members."""
    parts: tuple[Part, ...]
    gpu: str = ""
    """What each member was granted for, in the request grammar."""
    end_reason: str = ""
    seq: int = 0
    shape: int = 0
    acknowledged_shape: int = 0
    requeues: int = 0
    """How often it was taken back and waits again."""

    @property
    def waits(self) -> bool:
        """Whether it waits in the pool's queue for its first grant: room is being made for it."""
        return self.state == "QUEUED" and not self.requeues

    @property
    def makes_room(self) -> bool:
        """Whether it waits while the pool makes room for a single pod."""
        return self.waits and self.owner == names.ROOM_OWNER

    @property
    def live(self) -> bool:
        """Whether it holds capacity, or waits for some."""
        return self.state != ENDED

    @property
    def holding(self) -> bool:
        """Whether a pod may start or go on under it."""
        return self.state in HOLDING

    def node_of(self, member: int) -> str:
        """Where a member is; empty: nowhere."""
        return next((part.node for part in self.parts if part.member == member and not part.gone), "")

    @property
    def members(self) -> dict[int, str]:
        """The node of each member that it holds, and does not give back."""
        return {part.member: part.node for part in self.parts if not (part.gone or part.shed)}


def labels_of(cluster: str, namespace: str, *, pod_uid: str = "", gang: str = "", owner: str = "") -> dict[str, str]:
    """What a lease of ours is labelled with, so that any of our processes knows it again."""
    found = {
        names.LEASE_CLUSTER: cluster,
        names.LEASE_NAMESPACE: namespace,
        names.LEASE_POD_UID: pod_uid,
        names.LEASE_GANG: gang,
        names.LEASE_OWNER: owner,
    }
    return {name: value for name, value in found.items() if value}


def assignment_of(lease: KubeLease, member: int) -> dict[str, str]:
    """The annotations that tell a pod, and its node, what it holds."""
    parts: Sequence[Part] = [part for part in lease.parts if part.member == member and not part.gone]
    assignment = Assignment(
        lease.lease_id,
        member,
        parts[0].node if parts else "",
        tuple(AssignedSlice(part.device, part.share_milli, part.memory_bytes, part.tier) for part in parts),
    )
    return {names.LEASE_ID: lease.lease_id, names.ASSIGNMENT: msgspec.json.encode(assignment).decode()}

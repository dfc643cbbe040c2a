"""Which lease a pod's cgroup may be attached to: decided from what independent witnesses say, never from one alone.

the API server   the pod, its node and the assignment that was written with its binding
the kubelet      which pod holds the device units that a container was given (pod resources)
the agent        which slices of which leases are on this node
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aliquot.client.local import LocalSlice
from aliquot.common.errors import AliquotError
from aliquot.kube.core.pods import Assignment
from aliquot.kube.node.core.assignment import read_assignment

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Of what the API server shows of a static pod. Its uid is not the one that the kubelet names cgroups by."""


class NotBound(AliquotError):
    """A pod can't be tied to a lease (yet). `final`: it will not be, however long one waits."""

    def __init__(self, reason: str, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.word = reason
        """A stable word, as conditions of pods have them."""
        self.final = final


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod, as the API server names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def holders_of(units: Collection[str], held: Mapping[tuple[str, str], Collection[str]]) -> list[tuple[str, str]]:
    """The pods (namespace, name) that hold any of these units, as the kubelet says.

    A unit is held by one pod at a time, but the kubelet may still list one that has ended. A container may have a part
    of what its pod holds: those that run first hand theirs on, and only those that stay are listed.
    """
    wanted = set(units)
    return sorted(pod for pod, ids in held.items() if not wanted.isdisjoint(ids))


def decide(
    pod: PodIdentity, node: Collection[str], annotations: Mapping[str, str], held: Iterable[LocalSlice]
) -> Assignment:
    """What a pod's cgroup is to be attached to. `node`: what this node is called, by the cluster and by the pool.

    Raises `NotBound` and `BadAssignment`.
    """
    if MIRROR_ANNOTATION in annotations:
        raise NotBound(
            "StaticPod",
            f"pod {pod} is the kubelet's own, from a file: nobody binds it, so it can have no part of a GPU. Make it a "
            "DaemonSet's",
            final=True,
        )
    assignment = read_assignment(annotations)
    if assignment is None:
        raise NotBound("NoAssignment", f"pod {pod} was not placed by aliquot: it has no assignment")
    if assignment.node not in node:
        names = " or ".join(sorted(node))
        raise NotBound("OtherNode", f"pod {pod} is assigned to node {assignment.node}, and runs on {names}", final=True)
    of_lease = [piece for piece in held if piece.lease_id == assignment.lease]
    mine = [piece for piece in of_lease if piece.member == assignment.member]
    if not mine:
        raise NotBound("LeaseNotHere", f"lease {assignment.lease} has nothing for pod {pod} on this node (any more)")
    epoch = max(piece.lease_epoch for piece in mine)
    latest = [piece for piece in mine if piece.lease_epoch == epoch]
    said = Counter((each.device, each.share_milli, each.memory_bytes) for each in assignment.slices)
    true = Counter((each.device_uuid, each.share_milli, each.memory_bytes) for each in latest)
    if said != true:
        raise NotBound(
            "AssignmentDiffers",
            f"the assignment of pod {pod} is not what lease {assignment.lease} has on this node: "
            "who placed it must write it, nobody else",
            final=True,
        )
    ending = [piece.status for piece in latest if piece.status not in ("PENDING", "ACTIVE")]
    if ending:
        raise NotBound("LeaseEnds", f"lease {assignment.lease} of pod {pod} is {ending[0]}")
    return assignment

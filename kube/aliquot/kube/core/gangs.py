"""Which member of its gang's lease a pod is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aliquot.kube.core.pods import PodRecord


def choose(members: Mapping[int, str], uid: str, used: Mapping[int, str], nodes: Collection[str]) -> int | None:
    """The member for a pod: the one that it has, else the first that is free on one of these nodes; None: none is.

    `members` says where each is, `used` which pod is which.
    """
    for member, user in used.items():
        if user == uid and members.get(member) in nodes:
            return member
    return next((member for member in sorted(members) if member not in used and members[member] in nodes), None)


def missing(size: int, pods: Iterable[PodRecord]) -> int:
    """How many pods of a gang of this size do not exist yet."""
    return max(0, size - sum(not pod.over and not pod.deleting for pod in pods))

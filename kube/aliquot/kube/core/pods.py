"""A pod as far as we look at it: the few fields that are decoded, and the flat record that is kept.

50,000 pods as dictionaries are 1.4 GiB; as these records they are some tens of MiB, because what many pods share (names
of namespaces and nodes, what is asked for) is one object.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Final

import msgspec

from aliquot.kube.core import names
from aliquot.kube.core.asking import Asked, asked_by
from aliquot.kube.core.shapes import RawPod

ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})


class Gang(msgspec.Struct, frozen=True, gc=False):
    """The gang of a pod: pods of one namespace that start all or none."""

    namespace: str
    name: str
    size: int
    """0: it is not told."""
    reserved_by: str = ""


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a pod."""

    namespace: str
    name: str
    uid: str
    version: str
    node: str
    phase: str
    deleting: bool
    priority: int
    asked: Asked
    queue: str
    lease_id: str
    member: int
    """Of its lease, as its assignment says; -1: it has none."""
    gang: Gang | None

    @property
    def key(self) -> str:
        """`NAMESPACE/NAME`."""
        return f"{self.namespace}/{self.name}"

    @property
    def over(self) -> bool:
        """Whether it uses nothing any more: its containers have ended for good."""
        return self.phase in ENDED_PHASES


class AssignedSlice(msgspec.Struct, frozen=True):
    """A part of one device."""

    device: str
    share_milli: int
    memory_bytes: int
    tier: str = ""


class Assignment(msgspec.Struct, frozen=True):
    """What the annotation `aliquot.dev/assignment` says. It has no secret in it: others can read annotations."""

    lease: str
    member: int
    node: str
    slices: tuple[AssignedSlice, ...]


@lru_cache(maxsize=8192)
def _shared_ask(asked: Asked) -> Asked:
    return asked


@lru_cache(maxsize=4096)
def _shared_gang(gang: Gang) -> Gang:
    return gang


def flatten(pod: RawPod) -> PodRecord:
    """The record of a pod."""
    meta, spec = pod.metadata, pod.spec
    annotations, labels = meta.annotations or {}, meta.labels or {}
    return PodRecord(
        namespace=sys.intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        node=sys.intern(spec.node_name),
        phase=sys.intern(pod.status.phase),
        deleting=meta.deletion_timestamp is not None,
        priority=spec.priority or 0,
        asked=_shared_ask(asked_by(pod)),
        queue=sys.intern(labels.get(names.QUEUE, "")),
        lease_id=annotations.get(names.LEASE_ID, ""),
        member=member_of(annotations),
        gang=gang_of(pod),
    )


def may_preempt(pod: RawPod) -> bool:
    """Whether others may have to go for it, by its PriorityClass."""
    return pod.spec.preemption_policy != "Never"


def member_of(annotations: dict[str, str]) -> int:
    """The member that the assignment names; -1: none that can be read."""
    text = annotations.get(names.ASSIGNMENT)
    if text is None:
        return -1
    try:
        return msgspec.json.decode(text, type=Assignment).member
    except msgspec.DecodeError:
        return -1


def gang_of(pod: RawPod) -> Gang | None:
    """By its label, or its PodGroup."""
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    name = labels.get(names.GANG, "")
    if not name and pod.spec.scheduling_group is not None:
        name = pod.spec.scheduling_group.pod_group_name
    if not name:
        return None
    text = annotations.get(names.GANG_SIZE, "")
    size = int(text) if text.isdecimal() and len(text) < 6 else 0
    return _shared_gang(Gang(pod.metadata.namespace, name, size, annotations.get(names.RESERVED_BY, "")))

"""Pods as autoscalers choose them: by name, by labels, by whose they are."""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec

from aliquot.kube.core import names
from aliquot.kube.core.asking import Asked, asked_by
from aliquot.kube.core.pods import ENDED_PHASES, member_of
from aliquot.kube.core.remote_pods import REMOTE
from aliquot.kube.core.scaling.usage import ScaledPod
from aliquot.kube.core.shapes import RawMeta, RawPod

_HASH: Final = "pod-template-hash"


class RawOwner(msgspec.Struct, gc=False):
    """An entry of `metadata.ownerReferences`."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class RawOwnedMeta(RawMeta, rename="camel", gc=False):
    """`metadata`, with whose it is and since when."""

    owner_references: list[RawOwner] | None = None
    creation_timestamp: str = ""


class RawOwnedPod(RawPod, gc=False):
    """A pod, with the same."""

    metadata: RawOwnedMeta = msgspec.field(default_factory=RawOwnedMeta)


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a pod that has, or asks for, parts of GPUs."""

    pod: ScaledPod
    asked: Asked
    queue: str
    scheduler: str
    gang: str
    deleting: bool

    @property
    def waits(self) -> bool:
        """Whether it asks our scheduler for capacity that it does not have yet."""
        pod = self.pod
        return self.asked.anything and not (pod.node or pod.lease_id or pod.over or self.deleting)


def facts_of(raw: RawOwnedPod) -> PodFacts | None:
    """What is kept; None: it has nothing to do with GPUs of ours."""
    meta = raw.metadata
    annotations, labels = meta.annotations or {}, meta.labels or {}
    asked = asked_by(raw)
    if not asked.anything and names.LEASE_ID not in annotations and REMOTE not in annotations:
        return None
    group = raw.spec.scheduling_group
    return PodFacts(
        ScaledPod(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            labels=labels,
            owner=owner_of(meta),
            lease_id=annotations.get(names.LEASE_ID, ""),
            member=member_of(annotations),
            node=raw.spec.node_name,
            over=raw.status.phase in ENDED_PHASES,
            since_ms=time_ms(meta.creation_timestamp),
        ),
        asked,
        labels.get(names.QUEUE, ""),
        raw.spec.scheduler_name,
        labels.get(names.GANG, "") or (group.pod_group_name if group is not None else ""),
        meta.deletion_timestamp is not None,
    )


def owner_of(meta: RawOwnedMeta) -> str:
    """Whose pod it is, as `KIND/NAME`: of a Deployment's ReplicaSet the Deployment."""
    owner = next((one for one in meta.owner_references or () if one.controller), None)
    if owner is None:
        return ""
    hashed = f"-{(meta.labels or {}).get(_HASH, '')}"
    if owner.kind == "ReplicaSet" and len(hashed) > 1 and owner.name.endswith(hashed):
        return f"Deployment/{owner.name.removesuffix(hashed)}"
    return f"{owner.kind}/{owner.name}"


def time_ms(text: str) -> int:
    """A time of the API; 0: there is none."""
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000) if text else 0

"""Kueue's Workloads: when a reservation is wanted, what Kueue is told of it, and when it is let go.

Kueue reserves quota, then asks its admission checks. Ours reserves the whole gang in the pool and answers `Ready` with
labels that make the pods find their places, `Retry` where it does not fit now, `Rejected` where it never will.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aliquot.kube.core import names
from aliquot.kube.core.asking import asked_by
from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.shapes import RawMeta, RawPod, RawPodSpec

CONTROLLER: Final = "aliquot.dev/admission"
"""`spec.controllerName` of the AdmissionChecks that are ours."""
OWNER: Final = "kueue"
RETRY_AFTER_S: Final = 10


class RawTemplate(msgspec.Struct):
    """A pod's template."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: RawPodSpec = msgspec.field(default_factory=RawPodSpec)


class RawPodSet(msgspec.Struct):
    """Pods that are alike."""

    name: str = "main"
    count: int = 1
    template: RawTemplate = msgspec.field(default_factory=RawTemplate)


class RawWorkloadSpec(msgspec.Struct, rename="camel"):
    """`spec`."""

    pod_sets: list[RawPodSet] | None = None
    priority: int | None = None
    active: bool | None = None


class RawCondition(msgspec.Struct):
    """A condition."""

    type: str
    status: str = ""


class RawCheck(msgspec.Struct):
    """The state of one admission check."""

    name: str
    state: str = ""
    message: str = ""


class RawWorkloadStatus(msgspec.Struct, rename="camel"):
    """`status`."""

    conditions: list[RawCondition] | None = None
    admission_checks: list[RawCheck] | None = None


class RawWorkload(msgspec.Struct):
    """`kueue.x-k8s.io/v1beta2` Workload, as far as we look at it."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: RawWorkloadSpec = msgspec.field(default_factory=RawWorkloadSpec)
    status: RawWorkloadStatus = msgspec.field(default_factory=RawWorkloadStatus)

    def has(self, condition: str) -> bool:
        """Whether a condition is true."""
        return any(one.type == condition and one.status == "True" for one in self.status.conditions or ())


class Step(enum.Enum):
    """What to do about a Workload."""

    NOTHING = "nothing"
    RESERVE = "reserve"
    READY = "ready"
    """It is reserved; Kueue has not been told."""
    RETRY = "retry"
    """Its reservation was taken back."""
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class GangOf:
    """The gang of one pod set."""

    pod_set: str
    gang: str
    size: int
    pod: RawPod


def gang_name(uid: str, index: int) -> str:
    """The name of the gang of a Workload's pod set, short enough for a label."""
    return f"kueue-{uid}-{index}"


def workload_uid(gang: str) -> str:
    """The other way round; empty for a gang of another kind."""
    return gang.removeprefix("kueue-").rpartition("-")[0] if gang.startswith("kueue-") else ""


def gangs_of(workload: RawWorkload) -> list[GangOf]:
    """The gangs that a Workload needs: of its pod sets that ask for GPUs."""
    found = []
    for index, pod_set in enumerate(workload.spec.pod_sets or ()):
        meta, spec = pod_set.template.metadata, pod_set.template.spec
        pod = RawPod(
            msgspec.structs.replace(meta, namespace=workload.metadata.namespace, name=workload.metadata.name),
            msgspec.structs.replace(spec, priority=workload.spec.priority or 0),
        )
        if pod_set.count > 0 and asked_by(pod).anything:
            found.append(GangOf(pod_set.name, gang_name(workload.metadata.uid, index), pod_set.count, pod))
    return found


def step(workload: RawWorkload, checks: Collection[str], leases: Mapping[str, KubeLease]) -> Step:
    """What to do. `checks` are the names of our AdmissionChecks, `leases` the Workload's live ones by gang."""
    ours = [check for check in workload.status.admission_checks or () if check.name in checks]
    wanted = (
        bool(ours)
        and workload.has("QuotaReserved")
        and not workload.has("Finished")
        and workload.metadata.deletion_timestamp is None
        and workload.spec.active is not False
    )
    if not wanted:
        return Step.RELEASE if leases else Step.NOTHING
    needed = {one.gang for one in gangs_of(workload)}
    held = {gang for gang, lease in leases.items() if lease.holding}
    others = [lease for gang, lease in leases.items() if gang not in held]
    if others:
        return Step.NOTHING if all(lease.waits for lease in others) else Step.RETRY
    if needed <= held:
        return Step.NOTHING if all(check.state == "Ready" for check in ours) else Step.READY
    if any(check.state in {"Ready", "Retry", "Rejected"} for check in ours):
        # What was ready has lost its lease. Of the others Kueue clears the state itself, and asks again.
        return Step.RETRY if all(check.state == "Ready" for check in ours) else Step.NOTHING
    return Step.RESERVE


def pod_set_updates(gangs: Sequence[GangOf], leases: Mapping[str, KubeLease]) -> list[dict[str, Any]]:
    """What Kueue adds to the pods of a Workload that starts: their gang; and the node, where all are on one."""
    found: list[dict[str, Any]] = []
    for one in gangs:
        update: dict[str, Any] = {
            "name": one.pod_set,
            "labels": {names.GANG: one.gang},
            "annotations": {names.GANG_SIZE: str(one.size), names.RESERVED_BY: OWNER},
        }
        nodes = set(leases[one.gang].members.values())
        if len(nodes) == 1:
            update["nodeSelector"] = {"kubernetes.io/hostname": nodes.pop()}
        found.append(update)
    return found


def conflicts(gangs: Sequence[GangOf]) -> str:
    """Why Kueue could not apply our updates; empty: it can."""
    for one in gangs:
        if names.GANG in (one.pod.metadata.labels or {}):
            return (
                f"pod set {one.pod_set} has the label {names.GANG}: with Kueue its gang is the Workload; leave it out"
            )
    return ""

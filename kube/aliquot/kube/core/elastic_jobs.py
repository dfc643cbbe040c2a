"""ElasticJobs: pods follow the members of an elastic lease, as it starts, grows, shrinks and ends.

A pod of the job takes whichever member is free, so pods are interchangeable. Those whose member is given back are
deleted, and when they are gone the new shape is acknowledged. The programs find one another by what torchrun reads
(`PET_…`): any number between the least and the most may join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_GANG_SIZE, MIB
from aliquot.common.request import GpuRequest, format_request, parse_request
from aliquot.kube.core import names
from aliquot.kube.core.leases import KubeLease
from aliquot.kube.core.pods import PodRecord
from aliquot.kube.core.shapes import RawMeta

OWNER: Final = "job"
PORT: Final = 29500
MAX_RESTARTS: Final = 3
OVER: Final = frozenset({"Succeeded", "Failed"})


class JobError(AliquotError):
    """What an ElasticJob says can't be done."""

    reason = "ELASTIC_JOB"


class RawScaling(msgspec.Struct, rename="camel"):
    """`spec.scaling`."""

    min_replicas: int = 1
    max_replicas: int = 1
    gpu_per_replica: int = 1


class RawJobSpec(msgspec.Struct, rename="camel"):
    """`spec`."""

    scaling: RawScaling = msgspec.field(default_factory=RawScaling)
    gpu: str = ""
    pool: str = ""
    queue: str = ""
    priority: int = 0
    preemptible: bool = False
    max_restarts: int = MAX_RESTARTS
    template: dict[str, Any] = {}


class RawJobStatus(msgspec.Struct, rename="camel"):
    """`status`, as we write it."""

    phase: str = ""
    replicas: int = 0
    restarts: int = 0
    lease: str = ""
    message: str = ""


class RawJob(msgspec.Struct):
    """`aliquot.dev/v1alpha1` ElasticJob."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: RawJobSpec = msgspec.field(default_factory=RawJobSpec)
    status: RawJobStatus = msgspec.field(default_factory=RawJobStatus)

    @property
    def gang(self) -> str:
        """The name of its gang, short enough for a label."""
        return f"job-{self.metadata.uid}"


def job_uid(gang: str) -> str:
    """The job of a gang; empty: it is no job's."""
    return gang.removeprefix("job-") if gang.startswith("job-") else ""


def replicas_of(job: RawJob) -> tuple[int, int]:
    """The fewest and the most. Raises JobError."""
    least, most = job.spec.scaling.min_replicas, job.spec.scaling.max_replicas
    if not 0 < least <= most <= MAX_GANG_SIZE:
        raise JobError(f"from {least} to {most} replicas: 1 <= minReplicas <= maxReplicas <= {MAX_GANG_SIZE}")
    return least, most


def gpu_of(job: RawJob) -> GpuRequest:
    """What each replica holds. Raises RequestSyntaxError."""
    return parse_request(job.spec.gpu or str(job.spec.scaling.gpu_per_replica))


@dataclass(frozen=True, slots=True)
class JobStep:
    """What to do about a job."""

    create: tuple[str, ...] = ()
    """Names of pods."""
    delete: tuple[PodRecord, ...] = ()
    acknowledge: int = 0
    """The shape that its programs have adapted to; 0: none."""
    phase: str = "Pending"
    replicas: int = 0
    restarts: int = 0
    message: str = ""


def next_step(job: RawJob, lease: KubeLease, pods: Sequence[PodRecord]) -> JobStep:
    """Pods to create and delete, and what to tell. `pods` are all of the job's gang."""
    restarts = job.status.restarts
    if lease.state == "QUEUED":
        # It waits, or was preempted as a whole: nothing of it may run.
        return JobStep(delete=tuple(pods), phase="Waiting", restarts=restarts, message="it waits in the pool's queue")
    members = set(lease.members)
    delete: list[PodRecord] = []
    staying: list[PodRecord] = []
    done = 0
    leaving = False
    for pod in sorted(pods, key=lambda pod: (not pod.node, pod.name)):
        ours = not pod.node or (pod.lease_id == lease.lease_id and pod.member in members)
        if pod.phase == "Succeeded" and ours:
            done += 1
        elif pod.phase == "Failed":
            restarts += not pod.deleting
            delete.append(pod)
        elif not ours or len(staying) + done >= len(members):
            leaving = leaving or bool(pod.node)
            delete.append(pod)
        elif not pod.deleting:
            staying.append(pod)
    doomed = tuple(pod for pod in delete if not pod.deleting)
    if restarts > job.spec.max_restarts:
        return JobStep(phase="Failed", restarts=restarts, message=f"its pods failed {restarts} times")
    if done and not staying:
        return JobStep(phase="Succeeded", restarts=restarts, message="all of its pods have succeeded")
    missing = 0 if done else len(members) - len(staying)
    used = {pod.name for pod in pods}
    free = (f"{job.metadata.name}-{number}" for number in range(len(used) + missing))
    create = tuple(name for name in free if name not in used)[:missing]
    settled = not leaving and lease.shape > lease.acknowledged_shape
    running = sum(pod.phase == "Running" for pod in staying)
    return JobStep(
        create=create,
        delete=doomed,
        acknowledge=lease.shape if settled else 0,
        phase="Running" if running else "Starting",
        replicas=len(members),
        restarts=restarts,
        message=f"{running} of {len(members)} replicas run",
    )


def pod_of(job: RawJob, name: str, scheduler: str) -> dict[str, Any]:
    """A pod of the job. Raises JobError where its template has no containers."""
    template: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job.spec.template))
    spec = template.get("spec") or {}
    if not spec.get("containers"):
        raise JobError("spec.template.spec.containers is empty")
    meta, gpu = job.metadata, gpu_of(job)
    found = template.get("metadata") or {}
    limits = spec["containers"][0].setdefault("resources", {}).setdefault("limits", {})
    if gpu.share_milli is not None and gpu.share_milli % 10 == 0:
        limits[names.GPU_PERCENT] = str(gpu.count * gpu.share_milli // 10)
    if gpu.memory_bytes is not None and gpu.memory_bytes % MIB == 0:
        limits[names.GPU_MEMORY_MIB] = str(gpu.count * gpu.memory_bytes // MIB)
    for container in spec["containers"]:
        own = {one["name"] for one in container.get("env") or ()}
        added = [{"name": key, "value": value} for key, value in _rendezvous(job).items() if key not in own]
        container["env"] = [*(container.get("env") or ()), *added]
    spec |= {"schedulerName": scheduler, "hostname": name, "subdomain": meta.name}
    spec.setdefault("restartPolicy", "Never")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": {**(found.get("labels") or {}), names.GANG: job.gang},
            "annotations": {
                **(found.get("annotations") or {}),
                names.REQUEST: format_request(gpu),
                names.RESERVED_BY: OWNER,
            },
            "ownerReferences": [
                {
                    "apiVersion": "aliquot.dev/v1alpha1",
                    "kind": "ElasticJob",
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def service_of(job: RawJob) -> dict[str, Any]:
    """The headless service by which its pods have names."""
    meta = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "ownerReferences": [
                {"apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticJob", "name": meta.name, "uid": meta.uid}
            ],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.GANG: job.gang},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def _rendezvous(job: RawJob) -> dict[str, str]:
    scaling, meta = job.spec.scaling, job.metadata
    host = f"{meta.name}-0.{meta.name}.{meta.namespace}.svc"
    gpu = gpu_of(job)
    return {
        "PET_NNODES": f"{scaling.min_replicas}:{scaling.max_replicas}",
        "PET_NPROC_PER_NODE": str(gpu.count),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{PORT}",
        "PET_RDZV_ID": meta.uid,
        "MASTER_ADDR": host,
        "MASTER_PORT": str(PORT),
    }

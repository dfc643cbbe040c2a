"""Carries out what ElasticJobs need: a lease for each, pods for its members, a status that says where it stands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

import msgspec

from aliquot.client import NeverFits, PoolError, Request, Unavailable
from aliquot.common.errors import AliquotError
from aliquot.common.latest import Latest
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.common.request import format_request
from aliquot.kube.api import objects
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound, KubeUnavailable
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding
from aliquot.kube.api.resources import ELASTIC_JOBS, PODS, SERVICES
from aliquot.kube.controllers.loop import OwnerLoop, Owning
from aliquot.kube.core import elastic_jobs as jobs
from aliquot.kube.core.asking import Asked, annotated
from aliquot.kube.core.elastic_jobs import RawJob, RawJobStatus
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.pods import PodRecord
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.parts import Parts
from aliquot.kube.holding.requests import given_by

log = logging.getLogger(__name__)
_REST_S = 30.0
_RESTING_MAX = 1_000


class ElasticJobController:
    """See the module's docstring. `run` follows; where the CRD is not installed it waits for it."""

    def __init__(self, parts: Parts, scheduler: str, *, rest_s: float = _REST_S) -> None:
        client, pods, self._book = parts.client, parts.pods, parts.book
        self._client, self._requests, self._teller = client, parts.requests, parts.teller
        self._pods = pods
        self._scheduler = scheduler
        self._granter = Granter(parts.book)
        self._rest_s = rest_s
        self._rests: Latest[str, float] = Latest(_RESTING_MAX)
        """Until when no lease is asked for, by the uids of jobs whose pods were refused after they had one."""
        self.jobs: Informer[RawJob, RawJob] = Informer(client, ELASTIC_JOBS, RawJob, lambda one: one, optional=True)
        owning: Owning[RawJob] = Owning("ElasticJob", jobs.OWNER, lambda one: one.metadata.uid, jobs.job_uid)
        self.loop = OwnerLoop(parts, self.jobs, owning, self._look, end=self._end, known=(pods.informer.synced,))
        pods.on_change.append(self._pod_changed)
        self.jobs.on_unreadable.append(self._unreadable)

    async def _look(self, job: RawJob) -> bool:
        rests = asyncio.get_running_loop().time() < self._rests.get(job.metadata.uid, 0.0)
        if not self._pods.informer.trustworthy or (rests and not self._book.of_gang(job.metadata.namespace, job.gang)):
            return False
        await self._work(job)
        return True

    async def _work(self, job: RawJob) -> None:
        meta = job.metadata
        lease = self._book.of_gang(meta.namespace, job.gang)
        if job.status.phase in jobs.OVER or meta.deletion_timestamp is not None:
            if lease is not None and lease.state != "RELEASING":
                await self._granter.undo(lease, f"ElasticJob {meta.name} is over")
            return
        try:
            if lease is None:
                lease = await self._ask(job)
            step = jobs.next_step(job, lease, self._pods.of_gang(meta.namespace, job.gang))
            await self._create(job, step.create)
        except (KubeUnavailable, Unavailable):
            raise
        except AliquotError as error:
            hopeless = isinstance(error, NeverFits) or not isinstance(error, PoolError | KubeError)
            status = RawJobStatus("Failed" if hopeless else "Waiting", restarts=job.status.restarts)
            await self._tell(job, msgspec.structs.replace(status, message=error.explain()), warning=True)
            there = [pod for pod in self._pods.of_gang(meta.namespace, job.gang) if not pod.deleting]
            if lease is not None and len(there) < job.spec.scaling.min_replicas:
                # Its pods may not be there, by a quota or a policy: what they would use is others' for a while.
                self._rests[meta.uid] = asyncio.get_running_loop().time() + self._rest_s
                await self._granter.undo(lease, f"ElasticJob {meta.name} can't have pods: {error.message}"[:200])
            return
        for pod in step.delete:
            await objects.delete_pod(self._client, pod.namespace, pod.name, pod.uid)
        if step.acknowledge:
            self._book.take(await self._book.pool.acknowledge(lease.lease_id, step.acknowledge))
        status = RawJobStatus(step.phase, step.replicas, step.restarts, lease.lease_id, step.message)
        await self._tell(job, status)
        if step.phase == "Failed":
            await self._end(meta.namespace, meta.uid, "its ElasticJob has failed")

    async def _ask(self, job: RawJob) -> KubeLease:
        meta = job.metadata
        account = await self._requests.account(meta.namespace, meta.labels or {}, job.spec.queue)
        # The lease comes last: what the template, our rights or the cluster's policies forbid is heard of before
        # anything is held that nobody could use.
        pod = jobs.pod_of(job, f"{meta.name}-0", self._scheduler)
        options = given_by(Asked(options=annotated(pod["metadata"]["annotations"])))
        request = replace(_request_of(job, self._book.cluster, account.tenant, account.queue), **options)
        with contextlib.suppress(KubeConflict):
            await self._client.post(SERVICES.path(meta.namespace), jobs.service_of(job))
        with contextlib.suppress(KubeConflict):
            await self._client.post(PODS.path(meta.namespace), pod, dry_run=True)
        return await self._granter.for_job(meta.namespace, job.gang, request)

    async def _create(self, job: RawJob, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                await self._client.post(PODS.path(job.metadata.namespace), jobs.pod_of(job, name, self._scheduler))
            except KubeConflict:
                log.debug("%s is there already", name)

    async def _tell(self, job: RawJob, status: RawJobStatus, *, warning: bool = False) -> None:
        if status == job.status:
            return
        meta = job.metadata
        try:
            path = ELASTIC_JOBS.path(meta.namespace, meta.name, "status")
            await self._client.patch(path, {"status": msgspec.to_builtins(status)})
        except KubeNotFound:
            return
        if warning or status.phase != job.status.phase:
            about = Regarding("ElasticJob", meta.namespace, meta.name, meta.uid, ELASTIC_JOBS.version)
            self._teller.tell(about, status.phase, status.message, warning=warning or status.phase == "Failed")

    async def _end(self, namespace: str, uid: str, why: str) -> bool:
        """Of a job that is over or gone: its pods and its lease."""
        for pod in self._pods.of_gang(namespace, f"job-{uid}"):
            if not pod.deleting and not pod.over:
                await objects.delete_pod(self._client, pod.namespace, pod.name, pod.uid)
        return await self.loop.release(namespace, uid, why)

    def _unreadable(self, key: str, uid: str, why: str) -> None:
        namespace, _, name = key.partition("/")
        about = Regarding("ElasticJob", namespace, name, uid, ELASTIC_JOBS.version)
        self._teller.tell(about, "Unreadable", f"it stays as it is, as it can't be read: {why}", warning=True)

    def _pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        for pod in (before, after):
            if pod is not None and pod.gang is not None:
                self.loop.touch_gang(pod.gang.name)


def _request_of(job: RawJob, cluster: str, tenant: str, queue: str) -> Request:
    """The elastic lease of a job. Raises JobError, RequestSyntaxError."""
    least, most = jobs.replicas_of(job)
    gpu = jobs.gpu_of(job)
    meta = job.metadata
    return Request(
        format_request(gpu),
        tenant=tenant,
        queue=queue,
        pool=job.spec.pool,
        priority=job.spec.priority,
        gang_size=least,
        preemptible=job.spec.preemptible,
        detached=True,
        min_count=least * gpu.count if most > least else 0,
        max_count=most * gpu.count if most > least else 0,
        name=f"{meta.namespace}/{meta.name}"[:MAX_NAME_CHARS],
        labels=labels_of(cluster, meta.namespace, gang=job.gang, owner=jobs.OWNER),
    )

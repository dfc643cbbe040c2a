"""Leases on other machines for pods that ask for them by annotation: the ticket comes as a Secret, the lease ends with
its pod.

The pod may run on any node, by any scheduler: it mounts the Secret, so its containers start once there is one. The
lease waits in the pool's queue like any request. Nothing is kept here: who asks again with the pod's uid is given the
same lease.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from aliquot.client import LeaseState, PoolError, Request, Serve, WaitUntil
from aliquot.client.ticket import Ticket
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.kube.api.client import APPLY
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeRefused
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding
from aliquot.kube.api.resources import PODS, SECRETS
from aliquot.kube.controllers.loop import OwnerLoop, Owning
from aliquot.kube.core import names, remote_pods
from aliquot.kube.core.leases import labels_of
from aliquot.kube.core.remote_pods import RemotePod
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.parts import Parts

_GRANT_S: Final = 10.0


class RemotePodController:
    """See the module's docstring. `run` follows pods with the label."""

    def __init__(self, parts: Parts) -> None:
        client, self._book = parts.client, parts.book
        self._client, self._requests, self._teller = client, parts.requests, parts.teller
        self._written: dict[str, bytes] = {}
        """The last ticket, by the pod's uid."""
        self.pods: Informer[RawPod, RemotePod] = Informer(
            client, PODS, RawPod, remote_pods.flatten, labels=remote_pods.SECRET
        )
        owning: Owning[RemotePod] = Owning("pod", remote_pods.OWNER, lambda one: one.uid, remote_pods.pod_uid)
        self.loop = OwnerLoop(parts, self.pods, owning, self._look, end=self._end)

    async def _look(self, pod: RemotePod) -> bool:
        if pod.over:
            return await self._end(pod.namespace, pod.uid, "its pod has ended")
        try:
            await self._serve(pod)
        except (PoolError, KubeError) as error:
            self._tell(pod, "AliquotRemoteWaiting", error.message)
            return False
        except AliquotError as error:
            self._tell(pod, "AliquotRequestInvalid", error.explain())
        return True

    async def _end(self, namespace: str, uid: str, why: str) -> bool:
        self._written.pop(uid, None)
        return await self.loop.release(namespace, uid, why)

    async def _serve(self, pod: RemotePod) -> None:
        account = await self._requests.account(pod.namespace, pod.labels, pod.labels.get(names.QUEUE, ""))
        request = Request(
            remote_pods.request_text(pod),
            tenant=account.tenant,
            queue=account.queue,
            preemptible=True,
            detached=True,
            serve=Serve.REMOTE,
            name=f"{pod.namespace}/{pod.name}"[:MAX_NAME_CHARS],
            labels=labels_of(
                self._book.cluster, pod.namespace, gang=remote_pods.gang_of(pod.uid), owner=remote_pods.OWNER
            ),
        )
        # Who asks with the same key is told the same lease, with its secret.
        lease = await self._book.pool.allocate(
            request, until=WaitUntil.QUEUED, wait_s=_GRANT_S, key=remote_pods.gang_of(pod.uid)
        )
        self._book.take(lease)
        served = lease.slices and all(part.endpoint for part in lease.slices)
        if (lease.state is LeaseState.ACTIVE and served) or pod.uid in self._written:
            await self._write(pod, msgspec.json.encode(Ticket.of(lease)))

    async def _write(self, pod: RemotePod, ticket: bytes) -> None:
        if self._written.get(pod.uid) == ticket:
            return
        document = remote_pods.secret_document(pod, base64.b64encode(ticket).decode())
        try:
            try:
                await self._client.post(SECRETS.path(pod.namespace), document)
            except KubeConflict:
                await self._client.patch(SECRETS.path(pod.namespace, pod.secret), document, APPLY, force=True)
        except KubeRefused as error:
            self._tell(pod, "AliquotSecretRefused", f"Secret {pod.secret} can't be written: {error.message}")
            return
        self._written[pod.uid] = ticket

    def _tell(self, pod: RemotePod, reason: str, why: str) -> None:
        self._teller.tell(Regarding("Pod", pod.namespace, pod.name, pod.uid), reason, why, warning=True)

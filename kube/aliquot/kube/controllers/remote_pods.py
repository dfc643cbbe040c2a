"""Leases on other machines for pods that ask for them by annotation: the ticket comes as a Secret, the lease ends with
its pod.

The pod may run on any node, by any scheduler: it mounts the Secret, so its containers start once there is one. The
lease waits in the pool's queue like any request. Nothing is kept here: who asks again with the pod's uid is given the
same lease.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Final

import msgspec

from aliquot.client import Lease, LeaseState, PoolError, Request, Serve, WaitUntil
from aliquot.common.errors import AliquotError
from aliquot.common.ids import serving_credential
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.kube.api import objects
from aliquot.kube.api.client import APPLY, KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeNotFound, KubeRefused
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding
from aliquot.kube.api.resources import PODS, SECRETS
from aliquot.kube.core import names, remote_pods
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.remote_pods import RemotePod, Ticket, TicketPart
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.requests import Requests
from aliquot.kube.holding.telling import Teller

log = logging.getLogger(__name__)

_EVERY_S: Final = 10.0
_GRANT_S: Final = 10.0
_GOING: Final = frozenset({LeaseState.GRANTED, LeaseState.ACTIVE, LeaseState.UNREACHABLE})
_SAID: Final = {LeaseState.RELEASING: "RELEASED", LeaseState.PREEMPTING: "PREEMPTED", LeaseState.QUEUED: "PREEMPTED"}


class RemotePodController:
    """See the module's docstring. `run` follows pods with the label."""

    def __init__(self, client: KubeClient, book: LeaseBook, requests: Requests, teller: Teller) -> None:
        self._client = client
        self._book = book
        self._requests = requests
        self._teller = teller
        self._granter = Granter(book.pool, book)
        self._due: set[str] = set()
        self._gone: set[str] = set()
        self._written: dict[str, bytes] = {}
        """The last ticket, by the pod's uid."""
        self._wake = asyncio.Event()
        self.pods: Informer[RawPod, RemotePod] = Informer(
            client, PODS, RawPod, remote_pods.flatten, labels=remote_pods.SECRET, on_change=self._changed
        )
        book.on_lease.append(self._lease_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        following = asyncio.ensure_future(self.pods.run())
        try:
            await self._book.synced.wait()
            await self.pods.synced.wait()
            loop = asyncio.get_running_loop()
            while True:
                self._due.update(self.pods.items())
                await self._sweep()
                deadline = loop.time() + _EVERY_S
                while loop.time() < deadline:
                    self._wake.clear()
                    await self._turn()
                    try:
                        async with asyncio.timeout_at(deadline):
                            await self._wake.wait()
                    except TimeoutError:
                        break
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _turn(self) -> None:
        gone, self._gone = self._gone, set()
        for uid in gone:
            self._written.pop(uid, None)
            await self._let_go(uid, "its pod is gone")
        due, self._due = self._due, set()
        for key in sorted(due):
            pod = self.pods.get(key)
            if pod is None:
                continue
            if pod.over:
                await self._let_go(pod.uid, "its pod has ended")
                continue
            try:
                await self._serve(pod)
            except (PoolError, KubeError) as error:
                self._tell(pod, "AliquotRemoteWaiting", error.message)
            except AliquotError as error:
                self._tell(pod, "AliquotRequestInvalid", error.explain())

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
            await self._write(pod, _ticket(lease))

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

    async def _let_go(self, uid: str, why: str) -> None:
        for lease in self._book:
            if remote_pods.pod_uid(lease.gang) == uid and lease.owner == remote_pods.OWNER:
                await self._granter.undo(lease, why)

    async def _sweep(self) -> None:
        """Leases whose pod is gone. The API server is asked: our own list may be a moment old."""
        known = {pod.uid for pod in self.pods}
        for lease in self._book:
            uid = remote_pods.pod_uid(lease.gang)
            if lease.owner != remote_pods.OWNER or uid in known:
                continue
            try:
                whole = await self._book.pool.get(lease.lease_id)
                namespace, _, name = whole.name.partition("/")
                found = await objects.get_pod(self._client, namespace, name)
                if found is not None and found.metadata.uid == uid:
                    continue
            except KubeNotFound:
                pass
            except (PoolError, KubeError) as error:
                log.warning("lease %s could not be looked at: %s", lease.lease_id, error.message)
                continue
            await self._granter.undo(lease, "its pod is gone")

    def _changed(self, key: str, before: RemotePod | None, after: RemotePod | None) -> None:
        if before is not None and (after is None or after.uid != before.uid):
            self._gone.add(before.uid)
        self._due.add(key)
        self._wake.set()

    def _lease_changed(self, lease: KubeLease) -> None:
        uid = remote_pods.pod_uid(lease.gang)
        if uid:
            self._due.update(key for key, pod in self.pods.items().items() if pod.uid == uid)
            self._wake.set()

    def _tell(self, pod: RemotePod, reason: str, why: str) -> None:
        self._teller.tell(Regarding("Pod", pod.namespace, pod.name, pod.uid), reason, why, warning=True)


def _ticket(lease: Lease) -> bytes:
    parts = tuple(
        TicketPart(part.slice_id, part.endpoint, part.device_model, part.share_milli, part.memory_bytes)
        for part in sorted(lease.slices, key=lambda each: (each.member, each.slice_id))
    )
    ending = ""
    if lease.state not in _GOING:
        reasons = (part.reason for part in lease.slices if part.reason)
        ending = lease.end_reason or next(reasons, "") or _SAID.get(lease.state, "ENDED")
    credential = serving_credential(lease.secret, lease.lease_id, lease.lease_epoch, lease.tenant)
    detail = lease.end_detail or lease.note
    said = Ticket(lease.lease_id, lease.lease_epoch, lease.tenant, credential, parts, ending, detail)
    return msgspec.json.encode(said)

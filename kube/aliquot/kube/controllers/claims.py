"""ResourceClaims of our devices get leases, and lose them: what kube-scheduler has allocated is mirrored in the pool.

A lease that can't be had is said on the claim, and tried again: the node refuses to prepare the claim meanwhile, with
that reason. A lease that the pool takes back ends the pods that use the claim, which kube-scheduler itself never does
for claims. What ends with its claim is released, also when the claim went while nobody looked.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from aliquot.client import PoolError, Request
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.kube.api import objects
from aliquot.kube.api.client import MERGE
from aliquot.kube.api.errors import KubeError, KubeInvalid, KubeNotFound
from aliquot.kube.api.informer import Informer
from aliquot.kube.api.objects import Regarding
from aliquot.kube.api.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from aliquot.kube.controllers.loop import OwnerLoop, Owning
from aliquot.kube.core import claims, names
from aliquot.kube.core.claims import ClaimRefused, RawClaim, Wanted
from aliquot.kube.core.leases import KubeLease, labels_of
from aliquot.kube.core.shapes import RawMeta
from aliquot.kube.holding.granting import Granter
from aliquot.kube.holding.parts import Parts

log = logging.getLogger(__name__)

_AGAIN_S: Final = 2.0
"""How soon a lease that could not be had is tried for again: the kubelet asks again, too."""


class _Text(msgspec.Struct, gc=False):
    string: str = ""


class _Device(msgspec.Struct, gc=False):
    name: str = ""
    attributes: dict[str, _Text] | None = None


class _Pool(msgspec.Struct, gc=False):
    name: str = ""


class _SliceSpec(msgspec.Struct, gc=False):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None


class _Slice(msgspec.Struct, gc=False):
    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


class ClaimController:
    """See the module's docstring. `run` follows claims; where the cluster has none of that version it waits."""

    def __init__(self, parts: Parts, *, again_s: float = _AGAIN_S) -> None:
        client, self._book = parts.client, parts.book
        self._client, self._requests, self._teller = client, parts.requests, parts.teller
        self._granter = Granter(parts.book)
        self.claims: Informer[RawClaim, RawClaim] = Informer(
            client, RESOURCE_CLAIMS, RawClaim, lambda one: one, optional=True
        )
        self.slices: Informer[_Slice, _Slice] = Informer(
            client,
            RESOURCE_SLICES,
            _Slice,
            lambda one: one if one.spec.driver == claims.DRIVER else None,
            fields=f"spec.driver={claims.DRIVER}",
            optional=True,
        )
        owning: Owning[RawClaim] = Owning("claim", claims.OWNER, lambda one: one.metadata.uid, claims.claim_uid)
        self.loop = OwnerLoop(parts, self.claims, owning, self._look, others=(self.slices,), again_s=again_s)
        self.slices.on_change.append(lambda _, __, ___: self.loop.touch_all())

    async def _look(self, claim: RawClaim) -> bool:
        uid, namespace = claim.metadata.uid, claim.metadata.namespace
        lease = self._book.of_gang(namespace, claims.gang_of(uid))
        try:
            wanted = claims.wanted(claim)
            if wanted is None:
                if lease is not None:
                    await self._granter.undo(lease, "its claim is not allocated any more")
                if (claim.metadata.annotations or {}).get(names.LEASE_ID):
                    await self._tell(claim, None, "")
                return True
            lease = await self._mirror(claim, wanted, lease)
        except ClaimRefused as error:
            await self._refuse(claim, error.explain())
        except KubeError:
            raise
        except PoolError as error:
            await self._refuse(claim, error.message)
        except AliquotError as error:
            await self._refuse(claim, error.explain())
        else:
            if lease is not None:
                await self._tell(claim, lease, "")
            return True
        return False

    async def _mirror(self, claim: RawClaim, wanted: Wanted, lease: KubeLease | None) -> KubeLease | None:
        """The lease of a claim; None: it is being taken back. Raises ClaimRefused, PoolError, KubeError."""
        uuids = self._uuids(wanted)
        if lease is not None and not lease.holding:
            if lease.state in {"PREEMPTING", "QUEUED"}:
                await self._end_pods(claim, f"its lease is {lease.state}")
            if lease.state == "QUEUED":
                await self._granter.undo(lease, "it was taken back")
            return None
        if lease is not None:
            if claims.mirrors(lease, wanted.node, uuids):
                return lease
            await self._granter.undo(lease, "its claim was allocated elsewhere", wait=True)
        elif claim.pods:
            if (claim.metadata.annotations or {}).get(names.LEASE_ID):
                # They run, or are about to, under a lease that has ended.
                await self._end_pods(claim, "its lease has ended")
            if not await self._used(claim):
                raise ClaimRefused("its pods have ended", hint="it is free again when Kubernetes has noticed")
        meta = claim.metadata
        account = await self._requests.account(
            meta.namespace, meta.labels or {}, (meta.labels or {}).get(names.QUEUE, "")
        )
        request = Request(
            wanted.gpu,
            tenant=account.tenant,
            queue=account.queue,
            preemptible=True,
            detached=True,
            no_queue=True,
            name=f"{meta.namespace}/{meta.name}"[:MAX_NAME_CHARS],
            labels=labels_of(self._book.cluster, meta.namespace, gang=claims.gang_of(meta.uid), owner=claims.OWNER),
        )
        return await self._granter.exactly(meta.namespace, claims.gang_of(meta.uid), request, wanted.node, uuids)

    async def _used(self, claim: RawClaim) -> bool:
        """Whether a pod that it is reserved for is there, and stays, by what the API server says now."""
        for user in claim.pods:
            pod = await objects.get_pod(self._client, claim.metadata.namespace, user.name)
            if pod is not None and pod.metadata.uid == user.uid and pod.metadata.deletion_timestamp is None:
                return True
        return False

    def _uuids(self, wanted: Wanted) -> tuple[str, ...]:
        known = {
            device.name: (device.attributes or {}).get(claims.UUID, _Text()).string
            for one in self.slices
            if one.spec.pool.name == wanted.node
            for device in one.spec.devices or ()
        }
        missing = [name for name in wanted.devices if not known.get(name)]
        if missing:
            raise ClaimRefused(f"no ResourceSlice of {wanted.node} has device {missing[0]} (any more)")
        return tuple(known[name] for name in wanted.devices)

    async def _refuse(self, claim: RawClaim, why: str) -> None:
        await self._tell(claim, None, why)
        meta = claim.metadata
        about = Regarding("ResourceClaim", meta.namespace, meta.name, meta.uid, RESOURCE_CLAIMS.version)
        self._teller.tell(about, "AliquotClaimRefused", why, warning=True)

    async def _tell(self, claim: RawClaim, lease: KubeLease | None, why: str) -> None:
        wants = claims.annotations_for(lease, why)
        if not why and lease is None:
            wants[claims.REFUSED] = None
        if not claims.differ(claim.metadata.annotations, wants):
            return
        patch = {"metadata": {"uid": claim.metadata.uid, "annotations": wants}}
        try:
            path = RESOURCE_CLAIMS.path(claim.metadata.namespace, claim.metadata.name)
            await self._client.patch(path, patch, MERGE)
        except (KubeNotFound, KubeInvalid):
            return  # it is gone, or another has its name

    async def _end_pods(self, claim: RawClaim, why: str) -> None:
        for pod in claim.pods:
            if await objects.delete_pod(self._client, claim.metadata.namespace, pod.name, pod.uid):
                log.info("pod %s/%s is deleted: %s", claim.metadata.namespace, pod.name, why)
                about = Regarding("Pod", claim.metadata.namespace, pod.name, pod.uid)
                self._teller.tell(about, "AliquotLeaseEnded", why, warning=True)

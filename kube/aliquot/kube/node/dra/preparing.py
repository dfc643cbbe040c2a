"""Prepares claims: the kubelet names one, the API server says what it was allocated and which lease mirrors that.

The pod's cgroup is there by then, and none of its containers: the agent takes it for the lease, sets the limits and
reads them back, and only then the claim is prepared. One that the pool has refused is refused here, with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aliquot.common.errors import AliquotError
from aliquot.kube.core.claims import REFUSED, RawClaim, RawResult, results_of
from aliquot.kube.node.binder import Binder
from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION, LEASE_ANNOTATION
from aliquot.kube.node.dra.prepared import Prepared, PreparedClaims
from aliquot.kube.node.identity import NotBound
from aliquot.kube.node.injection import CDI_KIND, place
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts
from aliquot.kube.node.protos import dra_pb2 as pb


def unit_of(uid: str) -> str:
    """What stands for a claim where a container's units stand for it otherwise."""
    return f"claim-{uid}"


class Preparer:
    """Use from one event loop."""

    def __init__(self, parts: NodeParts, binder: Binder, claims: PreparedClaims) -> None:
        self._node, self._cluster, self._injection = parts.node, parts.cluster, parts.injection
        self._binder = binder
        self._claims = claims

    async def prepare(self, name: pb.Claim) -> Sequence[pb.Device]:
        """Returns when the limits are in force. Raises `NotPrepared` and `OSError`."""
        return await self._binder.persist(lambda: self._prepared(name))

    async def unprepare(self, name: pb.Claim) -> None:
        """Nothing of it is left here; its lease ends with its allocation. The agent isn't needed. Raises `OSError`."""
        self._injection.withdraw([place([unit_of(name.uid)])])
        self._claims.remove(name.uid)

    async def _prepared(self, name: pb.Claim) -> Sequence[pb.Device]:
        claim = await self._cluster.claim(name.namespace, name.name)
        if claim is None or claim.metadata.uid != name.uid:
            raise NotBound("ClaimGone", f"claim {name.namespace}/{name.name} is gone, or another by now", final=True)
        results = self._results(claim)
        pod = await self._pod_of(claim)
        annotations = claim.metadata.annotations or {}
        if REFUSED in annotations:
            raise NotBound("Refused", f"the pool has refused claim {claim.key}: {annotations[REFUSED]}", final=True)
        assignment = {key: annotations[key] for key in (LEASE_ANNOTATION, ASSIGNMENT_ANNOTATION) if key in annotations}
        if not assignment:
            raise NotBound("NoAssignment", f"claim {claim.key} has no lease (yet): the controllers give it one")
        unit = unit_of(name.uid)
        await self._binder.bind(replace(pod, annotations=assignment), [unit])
        self._claims.put(Prepared(name.namespace, name.name, name.uid, pod.identity.uid, assignment))
        cdi_id = f"{CDI_KIND}={place([unit])}"
        return [
            pb.Device(
                request_names=[each.request.partition("/")[0]],
                pool_name=each.pool,
                device_name=each.device,
                cdi_device_ids=[cdi_id],
                share_id=each.share_id or None,
            )
            for each in results
        ]

    def _results(self, claim: RawClaim) -> list[RawResult]:
        found = results_of(claim)
        if not found or any(each.pool != self._node for each in found):
            raise NotBound("NotAllocatedHere", f"claim {claim.key} is not allocated on {self._node}", final=True)
        return found

    async def _pod_of(self, claim: RawClaim) -> Pod:
        users = claim.pods
        if len(users) != 1:
            raise NotBound(
                "NotOnePod",
                f"claim {claim.key} is reserved for {len(users)} pods: a lease is one pod's. Make a claim for each, "
                "by a ResourceClaimTemplate",
                final=len(users) > 1,
            )
        pod = await self._cluster.pod(claim.metadata.namespace, users[0].name)
        if pod is None or pod.identity.uid != users[0].uid:
            raise NotBound("PodGone", f"pod {users[0].name} of claim {claim.key} is gone", final=True)
        if ASSIGNMENT_ANNOTATION in pod.annotations:
            raise NotBound(
                "TwoWays", f"pod {pod.identity} has a part by itself and by a claim; ask one way", final=True
            )
        others = [each for each in self._claims.of_pod(pod.identity.uid) if each.uid != claim.metadata.uid]
        if others:
            raise NotBound(
                "SeveralClaims",
                f"pod {pod.identity} has claims {others[0].name} and {claim.metadata.name}: a pod has one lease; ask "
                "for all of its devices in one claim",
                final=True,
            )
        return pod


class CdiNeeded(AliquotError):
    """Claims can't be given to containers without CDI."""

"""What becomes of leases whose pods have gone: they are given back, and nothing is left of them on the node."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aliquot.client.local import LocalStatus
from aliquot.kube.api.errors import KubeError
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts
from aliquot.kube.node.records import Bound
from aliquot.kube.node.releasing import Release

log = logging.getLogger(__name__)


class Leaving:
    """Use from one event loop."""

    def __init__(self, parts: NodeParts, release: Release | None) -> None:
        self._cluster, self._records = parts.cluster, parts.records
        self._cgroups, self._injection = parts.cgroups, parts.injection
        self._release = release
        """None: whoever asked for the leases gives them back."""

    async def look(self, pods: Mapping[str, Pod], status: LocalStatus) -> None:
        """Have leases released of pods that are not there any more, and forget those of which nothing is left."""
        here = {piece.lease_id for piece in status.slices}
        for bound in self._records.all():
            pod = pods.get(bound.uid)
            if pod is not None and not pod.ended:
                continue
            if bound.lease_id not in here:
                if not self._cgroups.exists(bound.cgroup) or not self._cgroups.pids(bound.cgroup):
                    self._injection.withdraw(self._left_by(bound))
                    self._records.remove(bound.uid)
                continue
            if self._release is not None and await self._has_gone(bound):
                await self._release(bound.lease_id, bound.uid)

    def _left_by(self, bound: Bound) -> list[str]:
        """Its places that no other pod has by now: the kubelet gives units out again as soon as their pod has ended."""
        others = {name for each in self._records.all() if each.uid != bound.uid for name in each.places}
        return [name for name in bound.places if name not in others]

    async def _has_gone(self, bound: Bound) -> bool:
        """Asked once more, of the API server itself: what is released ends programs."""
        try:
            now = await self._cluster.pod(bound.namespace, bound.name)
        except KubeError:
            return False
        return now is None or now.identity.uid != bound.uid or now.ended

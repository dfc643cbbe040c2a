"""Which pods are tied to which leases, on disk: so that a lease is given back whose pod went while nobody looked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aliquot.kube.node.filed import Filed
from aliquot.kube.node.identity import PodIdentity


class Bound(msgspec.Struct, frozen=True):
    """One pod and what it is tied to."""

    namespace: str
    name: str
    uid: str
    lease_id: str
    member: int
    cgroup: str
    places: tuple[str, ...] = ()
    """Where its containers find what was put there for them."""
    user: int = 0
    """Whom the tier has let in beside root."""

    @property
    def pod(self) -> PodIdentity:
        """The pod."""
        return PodIdentity(self.namespace, self.name, self.uid)


class Records(Filed[Bound]):
    """One file a pod. Pods that live and whose file can't be read are tied again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Bound)

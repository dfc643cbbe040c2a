"""Which pods are tied to which leases, on disk: so that a lease is given back whose pod went while nobody looked."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from aliquot.kube.node.core.identity import PodIdentity

log = logging.getLogger(__name__)

SUFFIX = ".json"


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


class Records:
    """One file a pod. What can't be read is left out, with a warning: pods that live are tied again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._by_uid: dict[str, Bound] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                found = msgspec.json.decode(path.read_bytes(), type=Bound)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s can't be read: %s", path, error)
                continue
            self._by_uid[found.uid] = found

    def all(self) -> list[Bound]:
        """Every one."""
        return list(self._by_uid.values())

    def of(self, uid: str) -> Bound | None:
        """That of a pod."""
        return self._by_uid.get(uid)

    def put(self, bound: Bound) -> None:
        """Write it down; durable against the death of this process when it returns. Raises `OSError`."""
        if self._by_uid.get(bound.uid) == bound:
            return
        path = self._path(bound.uid)
        staging = path.with_suffix(f".{os.getpid()}")
        staging.write_bytes(msgspec.json.encode(bound))
        staging.replace(path)
        self._by_uid[bound.uid] = bound

    def remove(self, uid: str) -> None:
        """The pod is not tied to anything any more. Raises `OSError`."""
        self._path(uid).unlink(missing_ok=True)
        self._by_uid.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}{SUFFIX}"

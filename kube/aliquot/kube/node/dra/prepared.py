"""Which claims are prepared for which pods, on disk: what was prepared before a restart is unprepared after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION
from aliquot.kube.node.seam import Pod

log = logging.getLogger(__name__)

SUFFIX = ".json"


class Prepared(msgspec.Struct, frozen=True):
    """One claim, and what its pod holds through it."""

    namespace: str
    name: str
    uid: str
    pod_uid: str
    annotations: dict[str, str]
    """The assignment, as a pod's own annotations would say it."""


class PreparedClaims:
    """One file a claim. What can't be read is left out, with a warning: the kubelet has a claim prepared again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._by_uid: dict[str, Prepared] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            try:
                found = msgspec.json.decode(path.read_bytes(), type=Prepared)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s can't be read: %s", path, error)
                continue
            self._by_uid[found.uid] = found

    def of_pod(self, pod_uid: str) -> list[Prepared]:
        """Those of a pod."""
        return [each for each in self._by_uid.values() if each.pod_uid == pod_uid]

    def put(self, claim: Prepared) -> None:
        """Write it down; durable against the death of this process when it returns. Raises `OSError`."""
        if self._by_uid.get(claim.uid) == claim:
            return
        path = self._path(claim.uid)
        staging = path.with_suffix(f".{os.getpid()}")
        staging.write_bytes(msgspec.json.encode(claim))
        staging.replace(path)
        self._by_uid[claim.uid] = claim

    def remove(self, uid: str) -> None:
        """It is not prepared any more. Raises `OSError`."""
        self._path(uid).unlink(missing_ok=True)
        self._by_uid.pop(uid, None)

    def told(self, pods: Mapping[str, Pod]) -> dict[str, Pod]:
        """Pods with the assignment of their claim beside their own annotations."""
        found = dict(pods)
        for claim in self._by_uid.values():
            pod = found.get(claim.pod_uid)
            if pod is not None and ASSIGNMENT_ANNOTATION not in pod.annotations:
                found[claim.pod_uid] = replace(pod, annotations={**pod.annotations, **claim.annotations})
        return found

    def _path(self, uid: str) -> Path:
        return self._folder / f"{uid}{SUFFIX}"

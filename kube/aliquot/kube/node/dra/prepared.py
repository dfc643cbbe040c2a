"""Which claims are prepared for which pods, on disk: what was prepared before a restart is unprepared after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION
from aliquot.kube.node.filed import Filed
from aliquot.kube.node.objects import Pod


class Prepared(msgspec.Struct, frozen=True):
    """One claim, and what its pod holds through it."""

    namespace: str
    name: str
    uid: str
    pod_uid: str
    annotations: dict[str, str]
    """The assignment, as a pod's own annotations would say it."""


class PreparedClaims(Filed[Prepared]):
    """One file a claim. The kubelet has a claim prepared again whose file can't be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Prepared)

    def of_pod(self, pod_uid: str) -> list[Prepared]:
        """Those of a pod."""
        return [each for each in self.all() if each.pod_uid == pod_uid]

    def told(self, pods: Mapping[str, Pod]) -> dict[str, Pod]:
        """Pods with the assignment of their claim beside their own annotations."""
        found = dict(pods)
        for claim in self.all():
            pod = found.get(claim.pod_uid)
            if pod is not None and ASSIGNMENT_ANNOTATION not in pod.annotations:
                found[claim.pod_uid] = replace(pod, annotations={**pod.annotations, **claim.annotations})
        return found

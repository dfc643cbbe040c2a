"""Tells pods, as a condition, which tier holds their part, or why nothing does. Written only when it changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fractions import Fraction

from aliquot.client.local import LocalStatus
from aliquot.kube.api.errors import KubeError
from aliquot.kube.core.pods import Assignment
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.core.resources import MIB
from aliquot.kube.node.objects import CONDITION, Condition, Pod

log = logging.getLogger(__name__)


class Reporting:
    """Use from one event loop."""

    def __init__(self, cluster: ApiServer) -> None:
        self._cluster = cluster
        self.pods: Mapping[str, Pod] = {}
        """All of the node by uid, as they were last seen."""
        self._wanted: dict[str, Condition] = {}
        self._written: dict[str, Condition] = {}

    def enforced(self, pod: Pod, assignment: Assignment, status: LocalStatus) -> None:
        """The part of a device that a pod was given is enforced, by the tier that the agent says now."""
        mine = [
            piece for piece in status.slices if (piece.lease_id, piece.member) == (assignment.lease, assignment.member)
        ]
        waiting = [piece.status for piece in mine if piece.status != "ACTIVE"]
        if waiting:
            self.refused(pod, "LimitNotSet", f"the limit of lease {assignment.lease} is {waiting[0].lower()}")
            return
        parts = [
            f"{float(Fraction(piece.share_milli, 1000)):g} of {piece.device_uuid} with {piece.memory_bytes // MIB}Mi, "
            f"held by {piece.tier.value.lower()}"
            for piece in mine
        ]
        tiers = {piece.tier.value.lower() for piece in mine}
        reason = "".join(tier.capitalize() for tier in sorted(tiers))
        self._want(pod, Condition(CONDITION, "True", reason or "None", "; ".join(parts)))

    def refused(self, pod: Pod, reason: str, message: str) -> None:
        """It is not."""
        self._want(pod, Condition(CONDITION, "False", reason, message))

    async def write(self) -> None:
        """Write what has changed; what can't be written now is written later."""
        for uid in self._wanted.keys() - self.pods.keys():
            self._wanted.pop(uid)
            self._written.pop(uid, None)
        for uid, condition in list(self._wanted.items()):
            pod = self.pods[uid]
            has = pod.conditions.get(CONDITION)
            if has == (condition.status, condition.reason, condition.message) or self._written.get(uid) == condition:
                continue
            try:
                await self._cluster.patch_pod_condition(pod.identity, condition)
            except KubeError as error:
                log.warning("the condition of pod %s can't be written: %s", pod.identity, error.message)
                return
            self._written[uid] = condition
            if condition.status != "True":
                log.warning("pod %s: %s: %s", pod.identity, condition.reason, condition.message)

    def _want(self, pod: Pod, condition: Condition) -> None:
        self._wanted[pod.identity.uid] = condition

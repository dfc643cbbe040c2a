"""Keeps the node's ResourceSlice as its devices are."""

from __future__ import annotations

import logging

from aliquot.client.local import LocalStatus
from aliquot.kube.api.errors import KubeError
from aliquot.kube.node.agent import devices_in
from aliquot.kube.node.core.devices import resource_slice
from aliquot.kube.node.core.resources import PoolDevice
from aliquot.kube.node.parts import NodeParts

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""How often to look whether it is still there, beside each change."""
SILENT_S = 60.0
"""For how long an agent that does not answer counts as being restarted. Then its devices are ill."""


class Publisher:
    """Use from one event loop."""

    def __init__(self, parts: NodeParts) -> None:
        self._node, self._cluster, self._monotonic_s = parts.node, parts.cluster, parts.monotonic_s
        self._heard_s = float("-inf")
        self._written_s = float("-inf")
        self._devices: list[PoolDevice] = []
        self._written: list[PoolDevice] | None = None
        self._said = ""

    async def look(self, status: LocalStatus | None, node_uid: str, *, offered: bool) -> None:
        """Publish what an agent says there is; None: it does not answer. Nothing where this node offers nothing."""
        now_s = self._monotonic_s()
        if status is not None:
            self._heard_s = now_s
            self._devices = devices_in(status)
        elif now_s - self._heard_s > SILENT_S:
            self._devices = [each.ill() for each in self._devices]
        wanted = self._devices if offered else []
        if not node_uid or (wanted == self._written and now_s - self._written_s < LOOK_S):
            return
        try:
            await self._cluster.publish(lambda generation: resource_slice(self._node, node_uid, wanted, generation))
        except KubeError as error:
            if error.message != self._said:
                log.warning("the devices of %s can't be published: %s", self._node, error.message)
            self._said = error.message
        else:
            self._written, self._written_s, self._said = list(wanted), now_s, ""

"""Says how much there is: units to the kubelet, memory in the Node's status.

Memory is no device of the plugin: a list of MiB would be longer than a kubelet reads, and capacity would become 0. It
is patched into the Node instead, and again whenever the Node has lost it, as one does that is registered anew.
"""

from __future__ import annotations

import logging

from aliquot.client.local import LocalStatus
from aliquot.kube.api.errors import KubeError
from aliquot.kube.node.agent import devices_in
from aliquot.kube.node.core.resources import (
    MEMORY_RESOURCE,
    NOTHING,
    PERCENT_RESOURCE,
    Advertised,
    advertise,
    other_owners,
)
from aliquot.kube.node.device_plugin import DevicePlugin
from aliquot.kube.node.objects import NODE_CONDITION, Condition, NodeRecord
from aliquot.kube.node.parts import NodeParts

log = logging.getLogger(__name__)

SILENT_S = 60.0
"""For how long an agent that does not answer counts as being restarted. Then nothing more is placed here."""
OWNERS_S = 60.0
"""How often to ask who else publishes devices of this node."""


class Advertiser:
    """Use from one event loop. Without a plugin nothing is advertised but who owns the devices."""

    def __init__(self, parts: NodeParts, plugin: DevicePlugin | None) -> None:
        self._node, self._pool_names = parts.node, parts.pool_names
        self._cluster, self._monotonic_s = parts.cluster, parts.monotonic_s
        self._plugin = plugin
        self.offered = False
        """Whether this node offers anything: its GPUs are nobody else's, and the pool has it by this name."""
        self._heard_s = float("-inf")
        self._asked_s = float("-inf")
        self._drivers: frozenset[str] = frozenset()
        self._there = NOTHING
        self._said: set[str] = set()
        """Problems that are not told again and again."""
        self.record: NodeRecord | None = None
        """The Node as it was last seen; None: not registered."""

    async def look(self, status: LocalStatus | None) -> None:
        """Advertise what an agent says there is; None: it does not answer."""
        now_s = self._monotonic_s()
        if status is not None:
            self._heard_s, self._there = now_s, advertise(devices_in(status))
        elif now_s - self._heard_s > SILENT_S:
            self._there = self._there.ill()
        await self._ask_drivers(now_s)
        owners = other_owners(self.record.allocatable if self.record is not None else {}, self._drivers)
        condition = self._condition(owners)
        self.offered = condition.status == "True"
        advertised = self._there if self.offered else NOTHING
        if self._plugin is not None:
            self._plugin.advertise(advertised)
        await self._patch(advertised if self._plugin is not None else NOTHING, condition)

    async def _ask_drivers(self, now_s: float) -> None:
        if now_s - self._asked_s < OWNERS_S:
            return
        try:
            self._drivers = await self._cluster.foreign_drivers(self._node)
        except KubeError as error:
            self._say(f"who else has devices on this node is not known: {error.message}")
        else:
            self._asked_s = now_s

    def _condition(self, owners: list[str]) -> Condition:
        if self._node not in self._pool_names:
            return Condition(
                NODE_CONDITION,
                "False",
                "OtherName",
                f"this node is {self._node} in the cluster and {self._pool_names[-1]} in the pool, so nobody could "
                f"place pods here: start its agent with --node-name {self._node}, or register the node by its old name",
            )
        if not owners:
            return Condition(NODE_CONDITION, "True", "Sole", f"only aliquot ({PERCENT_RESOURCE}) gives out GPUs here")
        return Condition(
            NODE_CONDITION,
            "False",
            "TwoOwners",
            f"{' and '.join(owners)} and aliquot ({PERCENT_RESOURCE}) would give out the same GPUs of {self._node}: "
            "aliquot offers nothing here until one of them is switched off on this node",
        )

    async def _patch(self, advertised: Advertised, condition: Condition) -> None:
        record = self.record
        if record is None:
            return
        wanted = str(advertised.memory_mib)
        as_wanted = record.capacity.get(MEMORY_RESOURCE) == wanted == record.allocatable.get(MEMORY_RESOURCE)
        if as_wanted and record.conditions.get(NODE_CONDITION) == (
            condition.status,
            condition.reason,
            condition.message,
        ):
            return
        if condition.status != "True":
            self._say(condition.message or "")
        try:
            await self._cluster.patch_node_status(self._node, {MEMORY_RESOURCE: wanted}, condition)
        except KubeError as error:
            self._say(f"node {self._node} can't be patched: {error.message}")

    def _say(self, problem: str) -> None:
        if problem not in self._said:
            log.warning("%s", problem)
        self._said = {problem, *list(self._said)[:1]}

"""The node's agent, as the node's parts of Kubernetes ask it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aliquot.client.local import CgroupAttachment, LocalAgent, LocalStatus
from aliquot.kube.node.core.resources import PoolDevice

WHOLE_MILLI = 1000


class Agent:
    """Asks without blocking the event loop. Raises `AgentUnreachable` and `AttachRefused`."""

    def __init__(self, socket: Path) -> None:
        self._local = LocalAgent(socket)

    async def status(self) -> LocalStatus:
        """Slices and devices of this node."""
        return await asyncio.to_thread(self._local.status)

    async def attach(self, lease_id: str, member: int, cgroup: str, uid: int) -> CgroupAttachment:
        """Make a cgroup's processes a member's; returns when the limits are in force."""
        return await asyncio.to_thread(self._local.attach_cgroup, lease_id, cgroup, member=member, uid=uid)


def devices_in(status: LocalStatus) -> list[PoolDevice]:
    """The devices. Cards that are cut into MIG instances are not leased; the instances are."""
    cut = {device.parent_uuid for device in status.devices if device.parent_uuid}
    return [
        PoolDevice(
            uuid=device.uuid,
            healthy=device.healthy,
            memory_bytes=max(0, device.memory_total_bytes - device.memory_reserved_bytes - device.foreign_bytes),
            percent=(device.compute_milli or WHOLE_MILLI) // 10,
            model=device.model,
        )
        for device in status.devices
        if device.uuid not in cut
    ]

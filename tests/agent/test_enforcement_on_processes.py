"""Real processes on simulated devices: who is over is stopped, everybody else lives."""

from __future__ import annotations

import asyncio
import signal

from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, desired, ended_by


async def test_over_limit_is_stopped_while_neighbours_and_foreigners_live(node: Node, coordinator: Coordinator) -> None:
    device = node.uuids[0]
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot came")
    coordinator.desire(
        desired(device, slice_id="l-1.1.0", lease_id="l-1", memory_bytes=4 * GIB),
        desired(device, slice_id="l-2.1.0", lease_id="l-2", memory_bytes=4 * GIB),
        full=True,
    )
    report = await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_ACTIVE)
    await coordinator.until_status("l-2.1.0", agent_pb2.SLICE_STATUS_ACTIVE)
    assert report.tier == Tier.WATCHDOG
    neighbour = await asyncio.to_thread(node.burn, "2Gi", lease_id="l-2")
    stranger = await asyncio.to_thread(node.foreign_burn, "8Gi", 0)
    greedy = await asyncio.to_thread(node.burn, "6Gi", lease_id="l-1")

    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and not piece.pids, "its memory is free")
    assert neighbour.poll() is None
    assert stranger.poll() is None
    assert '"signal": "SIGTERM"' in node.log.replace('":"', '": "')

"""What comes and goes leaves nothing behind in a coordinator: nodes, agents, leases, watchers, refusals."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path

import grpc
import pytest

from aliquot.common.duration import DurationMs
from aliquot.coordinator.core.books.enrolment import INVITE_KEPT_MS
from aliquot.coordinator.settings.config import LimitSettings
from aliquot.v1 import agent_pb2, leases_pb2, pool_pb2, types_pb2
from tests.bounded.counting import everything_in
from tests.coordinator.pool import Agent, Pool, agents, allocation, eventually, running, settings_for, sqlite
from tests.manual_clock import ManualClock

LIMITS = LimitSettings(retain_ended=DurationMs(1_000), watch_events=32, ledger_entries_max=10)


async def day(pool: Pool, clock: ManualClock, number: int) -> None:
    """A node comes, serves some leases, and goes for ever."""
    coordinator, leading = pool.coordinator, pool.leading
    agent = Agent(pool.address, f"n{number}", uuids=(f"GPU-{number}-a", f"GPU-{number}-b"))
    agent.telemetry = types_pb2.DeviceTelemetry(gpu_utilisation_percent=50, memory_used_bytes=1 << 30)
    async with agents(agent):
        await eventually(lambda: bool(agent.desired), "it is live")
        for turn in range(3):
            asked = allocation(
                "0.5,1Gi",
                tenant=f"t{turn}",
                idempotency_key=f"key-{number}-{turn}",
                wait_until=leases_pb2.WAIT_UNTIL_ACTIVE,
            )
            lease = (await pool.leases.Allocate(asked)).lease
            use = agent_pb2.SliceUse(slice_id=lease.slices[0].slice_id, observed_bytes=1 << 29, processes=1)
            await agent.delta(agent_pb2.DeviceReport(uuid=agent.uuids[0], slices=[use]))
            following = pool.watch(lease_ids=[lease.lease_id])
            waiting = asyncio.create_task(pool.allocate("2", tenant="waits"))
            await eventually(lambda: coordinator.view.totals.queued == 1, "somebody waits")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            (queued,) = [
                each for each in coordinator.view.leases.values() if each.request.tenant == "waits" and not each.ended
            ]
            await pool.release(queued.lease_id)
            clock.advance(5_000)
            await pool.leases.Release(
                leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True, wait_timeout_ms=20_000)
            )
            following.cancel()
            for gpu in ("8(no-such-model)", "nonsense"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await pool.allocate(gpu)
    await eventually(lambda: not len(leading.roster), "it is gone")

    def given_up() -> bool:
        clock.advance(2_000)
        leading.sweep_timer.beat()
        return coordinator.view.nodes[agent.node_id].state.name == "LOST"

    await eventually(given_up, "and given up")
    clock.advance(INVITE_KEPT_MS + 3_600_000)
    await pool.nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id=agent.node_id, force=True))
    await eventually(lambda: not coordinator.view.books.invites, "its invite is forgotten")
    clock.advance(60_000)
    await eventually(lambda: not coordinator.view.leases, "and its leases")
    await eventually(lambda: not len(leading.hub), "and their watchers")


def kept(pool: Pool) -> Counter[str]:
    gc.collect()
    coordinator, leading = pool.coordinator, pool.leading
    found = everything_in(
        leading.writer.state,
        coordinator.view,
        leading.hub,
        leading.waiters,
        leading.keepalive,
        leading.roster,
        leading.observed,
        coordinator.metrics,
    )
    # Lists with holes are made anew when there are many; SQLite's module keeps weak references to 200 cursors; so many
    # entries are kept as they are.
    for bounded in ("items of list", "ReferenceType", "Entry"):
        del found[bounded]
    # So is who did what, in the books and in the view: each invite is one who has joined.
    assert leading.writer.state is not None
    return found - everything_in(leading.writer.state.access.audit, coordinator.view.callers.audit)


@pytest.mark.no_cover  # would more than double its time
async def test_days_that_are_over_leave_nothing(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    async with running(settings_for(sqlite(tmp_path / "j.db"), limits=LIMITS), clock=clock) as pool:
        for number in range(4):
            await day(pool, clock, number)
        few = kept(pool)
        for number in range(4, 16):
            await day(pool, clock, number)
        grown = {name: (few[name], count) for name, count in kept(pool).items() if count > few[name] * 1.02 + 8}
        assert not grown, f"(before, after) of what has grown: {grown}"

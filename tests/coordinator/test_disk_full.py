"""A full disk under a serving coordinator: grants stop and say so, reads go on, and room is enough to recover."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from aliquot.v1 import pool_pb2, types_pb2
from tests.coordinator.pool import Pool, eventually, reason_of, running, settings_for, sqlite
from tests.journal.test_disk_full import fill, small_disk

__all__ = ["small_disk"]


async def leases_until_refused(pool: Pool) -> tuple[list[str], grpc.aio.AioRpcError]:
    answered: list[str] = []
    for number in range(10_000):
        try:
            lease = await pool.allocate("0.01,1Mi", idempotency_key=f"k{number}", detached=True)
        except grpc.aio.AioRpcError as error:
            return answered, error
        answered.append(lease.lease_id)
    raise AssertionError("the disk never became full")


@pytest.mark.root("to mount a small file system")
async def test_granting_stops_with_the_disk_full_and_goes_on_with_room(small_disk: Path) -> None:
    async with running(settings_for(sqlite(small_disk / "j.db"))) as pool:
        await pool.declare(8, devices=8)
        kept = await pool.allocate("0.1", idempotency_key="kept", detached=True)
        ballast = small_disk / "ballast"
        fill(ballast)
        answered, refusal = await leases_until_refused(pool)
        assert refusal.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(refusal) == "JOURNAL_UNAVAILABLE"
        assert "full" in (refusal.details() or "")
        assert (await pool.get(kept.lease_id)).state == types_pb2.LEASE_STATE_GRANTED
        status = await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())
        assert not status.granting
        assert status.leases == len(answered) + 1
        ballast.unlink()
        await eventually(lambda: pool.leading.writer.granting, "granting goes on by itself")
        again = await pool.allocate("0.01,1Mi", idempotency_key=f"k{len(answered)}", detached=True)
        assert again.state == types_pb2.LEASE_STATE_GRANTED
        assert set(answered) <= set(pool.coordinator.view.leases)

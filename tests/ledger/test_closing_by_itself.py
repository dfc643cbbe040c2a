"""Usage of long ago becomes sums for each day without anybody's doing, and nothing is written where there is none."""

from __future__ import annotations

from pathlib import Path

from aliquot.coordinator.core.books.ledger.entries import EntryKind
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from tests.coordinator.pool import Pool, eventually, running, settings_for, sqlite
from tests.manual_clock import ManualClock

BEGAN_MS = 1_790_000_000_000


def usage(pool: Pool) -> int:
    """How many entries of single leases there are."""
    state = pool.leading.writer.state
    assert state is not None
    return sum(entry.kind is EntryKind.USAGE for entry in state.ledger.entries)


async def test_old_usage_is_summed_up_and_young_usage_is_not(tmp_path: Path) -> None:
    settings = settings_for(sqlite(tmp_path / "j.db"))
    clock = ManualClock(BEGAN_MS)
    async with running(settings, clock=clock) as pool:
        await pool.declare(1)
        lease = await pool.allocate("0.5", detached=True)
        clock.advance(60_000)
        await pool.release(lease.lease_id)
        assert usage(pool) == 1
    async with running(settings, clock=ManualClock(BEGAN_MS + (settings.limits.ledger_days - 1) * DAY_MS)) as pool:
        seq = pool.leading.writer.durable_seq
        await pool.allocate("0.1", detached=True)
        assert usage(pool) == 1, "it is not old enough"
        assert pool.leading.writer.durable_seq > seq
    async with running(settings, clock=ManualClock(BEGAN_MS + (settings.limits.ledger_days + 1) * DAY_MS)) as pool:
        await eventually(lambda: usage(pool) == 0, "the books are closed")
        state = pool.leading.writer.state
        assert state is not None
        (total,) = [sums for days in state.ledger.closed.values() for sums in days.values()]
        assert total.share_milli_ms == 500 * 60_000, "and what was used is known exactly"

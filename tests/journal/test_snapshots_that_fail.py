"""Snapshots that can't be taken are told, until one is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aliquot.common.duties import Duties
from aliquot.coordinator.writing.journal.compaction import Compaction
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal


async def test_a_snapshot_that_fails_is_told_until_one_is_taken(tmp_path: Path) -> None:
    changed = asyncio.Event()
    duties = Duties(changed.set)
    path, seq = tmp_path / "j.db", 1

    def durable_seq() -> int:
        nonlocal seq
        seq += 1
        return seq

    compaction = Compaction(
        str(path), list, every_facts=1, durable_seq=durable_seq, prune=print, look_every_s=0.01, tell=duties.tell
    )
    path.write_bytes(b"no journal")
    running = asyncio.create_task(compaction.run())
    async with asyncio.timeout(60):
        await changed.wait()
        assert "snapshot" in duties.failing()["snapshots"]
        path.unlink()
        journal = SqliteJournal(path)
        journal.open()
        journal.close()
        while duties.failing():
            changed.clear()
            await changed.wait()
    running.cancel()

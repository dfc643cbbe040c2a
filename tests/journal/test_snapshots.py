"""Snapshots: taken by another process, believed only when intact, and what they make superfluous is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from aliquot.coordinator.core.snapshot import state_hash
from aliquot.coordinator.errors import JournalCorrupt, JournalUnavailable
from aliquot.coordinator.writing.journal.compaction import Compaction
from aliquot.coordinator.writing.journal.replay import Replayed, replay
from aliquot.coordinator.writing.journal.snapshots import SnapshotFolder
from aliquot.coordinator.writing.journal.snapshotter import take_snapshot
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal, snapshot_folder_of
from tests.journal.facts import Story, opened


def reread(path: Path) -> Replayed:
    journal = SqliteJournal(path)
    journal.open()
    try:
        return replay(journal)
    finally:
        journal.close()


def begun(path: Path, leases: int) -> Story:
    story = Story(opened(path))
    story.begin()
    for number in range(leases):
        story.lease(number)
    return story


def test_a_snapshot_is_taken_by_another_process_while_the_journal_is_written(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    command = [sys.executable, "-m", "aliquot.coordinator.writing.journal.snapshotter", str(path), "--hash"]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert done["seq"] == story.state.seq
    assert done["state_hash"] == state_hash(story.state)
    story.lease(10)
    story.journal.close()
    again = reread(path)
    assert again.snapshot_seq == done["seq"]
    assert again.facts == 2
    assert state_hash(again.state) == state_hash(story.state)


def test_pruning_what_snapshots_hold_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    first = take_snapshot(path)
    story.lease(10)
    take_snapshot(path)
    story.lease(11)
    seq = first["seq"]
    assert isinstance(seq, int)
    while story.journal.prune(seq, 3):
        pass
    story.journal.close()
    assert state_hash(reread(path).state) == state_hash(story.state)


async def test_compaction_goes_on_after_its_snapshots_could_not_be_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    story.journal.close()

    class AwayNowAndThen:
        asked = 0

        def seqs(self) -> list[int]:
            self.asked += 1
            if self.asked % 2:
                raise JournalUnavailable("the database is away")
            return SnapshotFolder(snapshot_folder_of(path)).seqs()

    durable_seq = count(story.state.seq)
    compaction = Compaction(
        str(path),
        AwayNowAndThen(),
        every_facts=1,
        durable_seq=lambda: next(durable_seq),
        prune=lambda seq: None,
        look_every_s=0.01,
    )
    caplog.set_level(logging.INFO)
    compacting = asyncio.create_task(compaction.run())
    async with asyncio.timeout(60):
        while caplog.text.count("the database is away") < 2 or caplog.text.count("snapshot taken") < 2:
            assert not compacting.done()
            await asyncio.sleep(0.02)
    compacting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await compacting


def test_a_damaged_snapshot_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    first = take_snapshot(path)
    story.lease(10)
    take_snapshot(path)
    seq = first["seq"]
    assert isinstance(seq, int)
    story.journal.prune(seq, 1000)
    story.journal.close()
    newest = max(snapshot_folder_of(path).iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        again = reread(path)
    assert "damaged" in caplog.text
    assert again.snapshot_seq == seq
    assert state_hash(again.state) == state_hash(story.state)


def test_with_every_snapshot_lost_a_pruned_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    take_snapshot(path)
    story.journal.prune(story.state.seq - 2, 1000)
    story.journal.close()
    for file in snapshot_folder_of(path).iterdir():
        file.unlink()
    with pytest.raises(JournalCorrupt) as refusal:
        reread(path)
    assert "missing" in str(refusal.value)
    assert "backup" in refusal.value.hint


def test_only_the_last_two_snapshots_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 1)
    for number in range(1, 5):
        take_snapshot(path)
        story.lease(number)
    story.journal.close()
    assert len(list(snapshot_folder_of(path).iterdir())) == 2


def test_a_snapshot_survives_the_loss_of_the_record_after_which_it_was_taken(tmp_path: Path) -> None:
    """The last record is damaged and cut off, but a snapshot holds what it said: writing goes on, nothing is lost."""
    import sqlite3

    path = tmp_path / "j.db"
    story = begun(path, 3)
    take_snapshot(path)
    story.journal.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE groups SET payload = x'00' WHERE last_seq = ?", (story.state.seq,))
    connection.close()
    journal = opened(path)
    again = replay(journal)
    assert state_hash(again.state) == state_hash(story.state)
    journal.resume_after(again.state.seq, again.digest)
    story.journal = journal
    story.lease(50)
    journal.close()
    assert state_hash(reread(path).state) == state_hash(story.state)

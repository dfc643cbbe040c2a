"""Snapshots: taken by another process, believed only when intact, and what they make superfluous is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import msgspec
import pytest

from aliquot.common.duties import Duties
from aliquot.coordinator.core.evolve.snapshot import FORMAT, state_hash
from aliquot.coordinator.errors import JournalCorrupt, JournalUnavailable
from aliquot.coordinator.writing.journal import snapshotter
from aliquot.coordinator.writing.journal.base import StoredSnapshot
from aliquot.coordinator.writing.journal.compaction import Compaction
from aliquot.coordinator.writing.journal.replay import Replayed, replay
from aliquot.coordinator.writing.journal.snapshots import MAGIC, SnapshotFolder, pack
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


@pytest.mark.parametrize("snapshots", [0, 1])
def test_what_leases_have_in_common_is_there_once(tmp_path: Path, snapshots: int) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 10)
    for _ in range(snapshots):
        take_snapshot(path)
    story.lease(10)
    story.lease(11)
    story.journal.close()
    again = reread(path)
    assert bool(again.snapshot_seq) == bool(snapshots)
    by_value = {lease.request: lease.request for lease in again.state.leases.values()}
    kept = {id(lease.request) for lease in list(again.state.leases.values())[: 10 if snapshots else 12]}
    assert len(kept) == len(by_value) < len(again.state.leases)


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
        AwayNowAndThen().seqs,
        every_facts=1,
        durable_seq=lambda: next(durable_seq),
        prune=lambda seq: None,
        look_every_s=0.01,
        tell=Duties().tell,
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
    assert f"facts 1 to {story.state.seq - 2} are missing" in str(refusal.value)
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


def kept(path: Path) -> SnapshotFolder:
    return SnapshotFolder(snapshot_folder_of(path))


def test_the_files_of_snapshots_are_synced_private_and_leave_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found = Path(f"/proc/self/fd/{descriptor}")
        synced.append((found.is_dir(), 0 if found.is_dir() else found.stat().st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "j.db"
    begun(path, 3).journal.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    done = take_snapshot(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (file,) = snapshot_folder_of(path).iterdir()
    assert done["bytes"] == file.stat().st_size > 0
    assert synced[:2] == [(False, done["bytes"]), (True, 0)]
    assert snapshot_folder_of(path).stat().st_mode & 0o777 == 0o700


def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.db"
    begun(path, 3).journal.close()

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        take_snapshot(path)
    assert list(snapshot_folder_of(path).iterdir()) == []


def test_only_files_that_are_named_like_snapshots_are_ones(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    assert kept(path).seqs() == []
    story = begun(path, 3)
    take_snapshot(path)
    first = story.state.seq
    story.lease(3)
    take_snapshot(path)
    for name in ("notes.snap", f"{99:020d}.part-1", "readme"):
        (snapshot_folder_of(path) / name).touch()
    assert kept(path).seqs() == [story.state.seq, first]
    assert [stored.snapshot.seq for stored in kept(path).read()] == [story.state.seq, first]
    story.journal.close()


def test_a_file_that_somebody_numbered_by_hand_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = begun(path, 1)
    snapshot_folder_of(path).mkdir()
    (snapshot_folder_of(path) / "1.snap").touch()
    for number in range(1, 3):
        take_snapshot(path)
        story.lease(number)
    assert len(list(kept(path).read())) == 2
    story.journal.close()


def test_a_snapshot_that_goes_away_while_others_are_read_is_passed_over(tmp_path: Path) -> None:
    """The snapshotter drops old ones whenever it likes."""
    path = tmp_path / "j.db"
    story = begun(path, 3)
    take_snapshot(path)
    story.lease(3)
    take_snapshot(path)
    reading = kept(path).read()
    assert next(reading).snapshot.seq == story.state.seq
    min(snapshot_folder_of(path).iterdir()).unlink()
    assert list(reading) == []
    story.journal.close()


@pytest.mark.parametrize(
    ("snapshot_format", "first_byte", "said"),
    [(FORMAT + 1, None, "newer version"), (FORMAT, 0xC1, "can't be read by this version"), (FORMAT - 1, None, "")],
)
def test_a_snapshot_of_another_version_is_read_if_it_is_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot_format: int, first_byte: int | None, said: str
) -> None:
    path = tmp_path / "j.db"
    begun(path, 3).journal.close()
    take_snapshot(path)
    (file,) = snapshot_folder_of(path).iterdir()
    (stored,) = kept(path).read()
    changed = msgspec.structs.replace(stored.snapshot, format=snapshot_format)
    data = pack(StoredSnapshot(changed, stored.digest))
    if first_byte is not None:
        body = bytes([first_byte]) + data[len(MAGIC) + 33 :]
        data = MAGIC + hashlib.sha256(body).digest() + body
    file.write_bytes(data)
    caplog.clear()
    assert len(list(kept(path).read())) == (not said)
    assert said in caplog.text
    assert (file.name in caplog.text) == bool(said)
    again = reread(path)
    assert (again.snapshot_seq == again.state.seq) == (not said)


@pytest.mark.parametrize("place", [0, len(MAGIC) - 1, len(MAGIC), len(MAGIC) + 31, len(MAGIC) + 32, -1])
def test_no_byte_of_a_snapshot_may_be_another(tmp_path: Path, place: int) -> None:
    path = tmp_path / "j.db"
    begun(path, 1).journal.close()
    take_snapshot(path)
    (file,) = snapshot_folder_of(path).iterdir()
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    assert list(kept(path).read()) == []


def test_the_snapshotter_steps_back_and_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[object] = []
    monkeypatch.setattr("aliquot.coordinator.writing.journal.snapshotter.os.nice", called.append)
    monkeypatch.setattr("aliquot.coordinator.writing.journal.snapshotter.gc.disable", lambda: called.append("gc"))
    path = tmp_path / "j.db"
    story = begun(path, 3)
    story.journal.close()
    assert snapshotter.main([str(path)]) == 0
    done = json.loads(capsys.readouterr().out)
    assert called == [10, "gc"]
    assert done == {"seq": story.state.seq, "facts": story.state.seq, "leases": 3, "bytes": done["bytes"]}
    assert done["bytes"] > 0
    assert snapshotter.main([str(path), "--nice", "0", "--hash"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert called[2] == 0
    assert (done["facts"], done["bytes"], done["state_hash"]) == (0, 0, state_hash(story.state))
    assert snapshotter.main([str(tmp_path / "none.db")]) == 1
    assert "none.db" in capsys.readouterr().err

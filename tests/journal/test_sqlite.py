"""The SQLite journal: what was committed is read back, and what can't be believed is never used."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.errors import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalTooNew,
    JournalUnavailable,
    NotLeader,
)
from aliquot.coordinator.writing.journal.base import Group
from aliquot.coordinator.writing.journal.codec import digest_of
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from aliquot.coordinator.writing.leadership.single import SingleLeadership, lock_path_of
from tests.journal.facts import Story, opened, written


def edit(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the journal's back."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM groups").fetchone()[0])
    finally:
        connection.close()


def test_replay_gives_the_state_that_was_written(tmp_path: Path) -> None:
    story = written(tmp_path / "j.db", 20)
    journal = SqliteJournal(tmp_path / "j.db")
    journal.open()
    again = replay(journal)
    assert state_hash(again.state) == state_hash(story.state)
    assert again.state.seq == journal.last_seq == story.state.seq
    journal.resume_after(again.state.seq, again.digest)
    journal.raise_leader_epoch()
    story.journal = journal
    story.lease(99)
    assert journal.last_seq == story.state.seq
    journal.close()


def test_the_secret_of_the_pool_outlives_the_process(tmp_path: Path) -> None:
    first = opened(tmp_path / "j.db")
    secret = first.pool_secret
    first.close()
    second = opened(tmp_path / "j.db")
    assert second.pool_secret == secret
    assert len(secret) == 32
    second.close()
    assert opened_elsewhere(tmp_path) != secret


def opened_elsewhere(tmp_path: Path) -> bytes:
    journal = opened(tmp_path / "other.db")
    journal.close()
    return journal.pool_secret


def test_a_damaged_last_record_is_cut_off_loudly_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j.db"
    story = written(path, 5)
    edit(path, "UPDATE groups SET payload = zeroblob(9) WHERE last_seq = ?", story.state.seq)
    journal = SqliteJournal(path)
    with caplog.at_level(logging.ERROR):
        journal.open()
    assert "CUT OFF" in caplog.text
    aside = list(tmp_path.glob("j.db.cut-*"))
    assert len(aside) == 1
    assert aside[0].read_bytes() == bytes(9)
    assert str(aside[0]) in caplog.text
    again = replay(journal)
    assert set(again.state.leases) == {f"l-{number}" for number in range(4)}
    journal.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE groups SET payload = zeroblob(9) WHERE last_seq = 6",
        "UPDATE groups SET digest = zeroblob(32) WHERE last_seq = 6",
        "UPDATE groups SET previous = zeroblob(32) WHERE last_seq = 6",
        "UPDATE groups SET first_seq = first_seq - 1 WHERE last_seq = 6",
        "DELETE FROM groups WHERE last_seq = 6",
    ],
)
def test_a_damaged_record_in_the_middle_stops_the_start_and_says_what_to_do(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "j.db"
    written(path, 5)
    before = rows(path)
    edit(path, damage)
    journal = SqliteJournal(path)
    journal.open()
    with pytest.raises(JournalCorrupt) as refusal:
        replay(journal)
    assert "restore" in refusal.value.hint
    journal.close()
    assert rows(path) in (before, before - 1)  # nothing more was thrown away


def test_records_of_another_journal_do_not_pass(tmp_path: Path) -> None:
    """Each record is intact by itself; only the chain shows that they don't belong together."""
    written(tmp_path / "a.db", 5)
    other = Story(opened(tmp_path / "b.db"))
    other.begin()
    for number in range(5):
        other.now_ms += 1
        other.lease(number)
    other.journal.close()
    connection = sqlite3.connect(tmp_path / "a.db")
    with connection:
        connection.execute("ATTACH ? AS other", (str(tmp_path / "b.db"),))
        connection.execute("DELETE FROM groups WHERE last_seq = 6")
        connection.execute("INSERT INTO groups SELECT * FROM other.groups WHERE last_seq = 6")
    connection.close()
    journal = SqliteJournal(tmp_path / "a.db")
    journal.open()
    with pytest.raises(JournalCorrupt):
        replay(journal)
    journal.close()


def test_a_journal_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 1)
    edit(path, "UPDATE meta SET value = 99 WHERE key = 'format'")
    with pytest.raises(JournalTooNew) as refusal:
        SqliteJournal(path).open()
    assert "99" in str(refusal.value)
    assert "newer" in refusal.value.hint


def test_facts_that_this_version_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = opened(path)
    from aliquot.coordinator.core.values.fact import Fact

    class FromTheFuture(Fact, frozen=True, array_like=True, tag_field="k", tag="future"):
        pass

    journal.commit(Group(1, (FromTheFuture(at_ms=1),)))
    with pytest.raises(JournalTooNew):
        replay(journal)
    journal.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no SQLite file, however long it goes on about it")
    with pytest.raises(JournalCorrupt):
        SqliteJournal(tmp_path / "text.db").open()
    edit(tmp_path / "other.db", "CREATE TABLE songs (title)")
    with pytest.raises(JournalCorrupt):
        SqliteJournal(tmp_path / "other.db").open()


def test_a_deposed_writer_cannot_commit(tmp_path: Path) -> None:
    old = Story(opened(tmp_path / "j.db"))
    old.begin()
    new = SqliteJournal(tmp_path / "j.db")
    new.open()
    assert new.raise_leader_epoch() == 2
    with pytest.raises(NotLeader):
        old.lease(1)
    new.close()
    old.journal.close()
    assert rows(tmp_path / "j.db") == 1


def test_two_coordinators_never_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    first = SingleLeadership(SqliteJournal(path), lock_path_of(path))
    assert first.acquire() == 1
    with pytest.raises(JournalLocked) as refusal:
        SingleLeadership(SqliteJournal(path), lock_path_of(path)).acquire()
    assert "process" in str(refusal.value)
    first.release()
    second = SingleLeadership(SqliteJournal(path), lock_path_of(path))
    assert second.acquire() == 2
    second.release()


def test_no_file_is_open_to_others_at_any_time(tmp_path: Path) -> None:
    """Its log and its index, too, and before the first clean stop: the pool's secret is in them."""
    before = os.umask(0)
    try:
        journal = SqliteJournal(tmp_path / "j.db")
        journal.open()
        try:
            made = sorted(tmp_path.iterdir())
            assert {path.name for path in made} >= {"j.db", "j.db-wal", "j.db-shm"}
            assert [path.name for path in made if path.stat().st_mode & 0o077] == []
        finally:
            journal.close()
    finally:
        os.umask(before)


def forged(path: Path, seq: int, **changed: object) -> None:
    """Change a record, and give it the digest that belongs to it."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute("SELECT * FROM groups WHERE last_seq = ?", (seq,)).fetchone()) | changed
    row["digest"] = digest_of(**{name: value for name, value in row.items() if name != "digest"})
    with connection:
        connection.execute(
            "UPDATE groups SET version = :version, first_seq = :first_seq, payload = :payload, digest = :digest "
            "WHERE last_seq = :last_seq",
            row,
        )
    connection.close()


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"version": 2}, JournalTooNew, "format 2; this version reads up to 1"),
        ({"payload": b"\xc1"}, JournalCorrupt, "although their checksum is right"),
        ({"payload": b"\x90"}, JournalCorrupt, "holds 0 facts"),
        ({"first_seq": 5}, JournalCorrupt, "facts 5 to 7 holds"),
    ],
)
def test_a_record_that_is_intact_but_says_what_cannot_be_is_refused(
    tmp_path: Path, changed: dict[str, object], error: type[JournalError], said: str
) -> None:
    path = tmp_path / "j.db"
    story = written(path, 3)
    found = {"first_seq": story.state.seq - 2} if "first_seq" in changed else changed
    forged(path, story.state.seq, **found)
    said = said.replace("5 to 7", f"{story.state.seq - 2} to {story.state.seq}")
    with pytest.raises(error, match=said):
        list(SqliteJournal(path).groups(0))


def test_an_older_record_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = written(path, 1)
    forged(path, story.state.seq, version=0)
    assert len(list(SqliteJournal(path).groups(0))) == 2


def test_a_damaged_only_record_is_cut_off_and_the_journal_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 0)
    edit(path, "UPDATE groups SET payload = x'00'")
    journal = opened(path)
    assert journal.last_seq == 0
    story = Story(journal)
    story.begin()
    journal.close()
    assert state_hash(replay(SqliteJournal(path)).state) == state_hash(story.state)


def test_after_a_cut_writing_goes_on_from_the_record_before(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = written(path, 1)
    last_seq = story.state.seq
    edit(path, "UPDATE groups SET payload = x'00' WHERE last_seq = ?", last_seq)
    journal = opened(path)
    assert journal.last_seq == next(journal.groups(0)).group.last_seq < last_seq
    again = replay(journal).state
    story.journal = journal
    story.go_on_with(again)
    story.lease(5)
    assert set(replay(journal).state.leases) == {"l-5"}
    journal.close()
    assert not sorted(tmp_path.glob("*.cut-*"))[1:]


def test_two_damaged_records_at_the_end_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    written(path, 3)
    before = rows(path)
    edit(path, "UPDATE groups SET payload = x'00' WHERE last_seq > 4")
    with pytest.raises(JournalCorrupt, match="last two records") as refusal:
        SqliteJournal(path).open()
    assert "repair" in refusal.value.hint
    assert rows(path) == before
    assert not list(tmp_path.glob("*.cut-*"))


def test_a_journal_without_its_own_entries_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "j.db", 1)
    edit(tmp_path / "j.db", "DELETE FROM meta WHERE key = 'pool_secret'")
    with pytest.raises(JournalCorrupt, match="'pool_secret' is missing"):
        SqliteJournal(tmp_path / "j.db").open()


def test_a_journal_that_is_closed_says_so(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j.db")
    journal.close()
    journal.close()
    with pytest.raises(JournalUnavailable, match="not open"):
        journal.prune(1, 1)
    with pytest.raises(JournalUnavailable):
        list(SqliteJournal(tmp_path / "none.db").groups(0))
    assert not (tmp_path / "none.db").exists(), "reading makes no file"


def test_commits_are_synced_in_a_log_that_is_folded_in_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **named: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    journal = opened(tmp_path / "j.db")
    found = [made[0].execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]
    assert made[0].execute("PRAGMA wal_autocheckpoint").fetchone()[0] * 4096 == 32 << 20
    assert made[0].execute("PRAGMA busy_timeout").fetchone()[0] == 5000
    journal.close()
    with pytest.raises(sqlite3.ProgrammingError):
        made[0].execute("SELECT 1")


def test_a_slow_disk_can_be_pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("aliquot.coordinator.writing.journal.sqlite.time.sleep", slept.append)
    for delay_ms in (0, 5):
        journal = SqliteJournal(tmp_path / f"{delay_ms}.db", fsync_delay_ms=delay_ms)
        journal.open()
        journal.raise_leader_epoch()
        Story(journal).begin()
        journal.close()
    assert slept == [0.005]


def test_recovery_opens_the_file_afresh_and_writes_to_it_every_time(tmp_path: Path) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.begin()
    probes = set()
    for number in range(2):
        story.journal.recover()
        story.lease(number)
        connection = sqlite3.connect(tmp_path / "j.db")
        (probe,) = connection.execute("SELECT value FROM meta WHERE key = 'probe'").fetchone()
        connection.close()
        assert len(probe) == 4096
        probes.add(probe)
    assert len(probes) == 2
    story.journal.close()


def test_a_failed_start_leaves_no_half_made_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.db"
    monkeypatch.setattr("aliquot.coordinator.writing.journal.sqlite._SCHEMA", "CREATE TABLE meta (key); nonsense")
    failed = SqliteJournal(path)
    with pytest.raises(JournalCorrupt, match="nonsense"):
        failed.open()
    monkeypatch.undo()
    opened(path).close()
    failed.close()


def test_a_backup_is_private_and_overwrites_nothing(tmp_path: Path) -> None:
    story = written(tmp_path / "j.db", 2)
    source = SqliteJournal(tmp_path / "j.db")
    source.back_up(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    assert state_hash(replay(SqliteJournal(tmp_path / "copy.db")).state) == state_hash(story.state)
    with pytest.raises(JournalUnavailable, match="exists"):
        source.back_up(tmp_path / "copy.db")

"""The SQLite journal: what was committed is read back, and what can't be believed is never used."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from aliquot.coordinator.core.snapshot import state_hash
from aliquot.coordinator.errors import JournalCorrupt, JournalLocked, JournalTooNew, NotLeader
from aliquot.coordinator.writing.journal.base import Group
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
    from aliquot.coordinator.core.fact import Fact

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


def test_the_file_is_private(tmp_path: Path) -> None:
    written(tmp_path / "j.db", 1)
    assert (tmp_path / "j.db").stat().st_mode & 0o077 == 0

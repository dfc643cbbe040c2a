"""The PostgreSQL journal where it differs from the others: fences, snapshots in a table, a server that goes away."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from aliquot.cli.main import build_parser, commands
from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.errors import JournalCorrupt, JournalTooNew, JournalUnavailable, NotLeader
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.snapshotter import take_snapshot
from tests.failover.server import Postgres
from tests.journal.facts import Story

pytestmark = pytest.mark.postgres


def begun(conninfo: str, leases: int = 5) -> Story:
    journal = PostgresJournal(conninfo)
    journal.open()
    story = Story(journal)
    story.begin(journal.raise_leader_epoch())
    for number in range(leases):
        story.lease(number)
    return story


def edit(conninfo: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_a_snapshot_is_taken_by_another_process_and_replaces_what_is_pruned(database: str) -> None:
    story = begun(database, 10)
    command = [
        sys.executable,
        "-m",
        "aliquot.coordinator.writing.journal.snapshotter",
        f"postgres:{database}",
        "--hash",
    ]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert done["state_hash"] == state_hash(story.state)
    while story.journal.prune(done["seq"], 3):
        pass
    story.lease(10)
    again = replay(story.journal)
    assert again.snapshot_seq == done["seq"]
    assert state_hash(again.state) == state_hash(story.state)
    story.journal.close()


def test_only_the_last_two_snapshots_are_kept_and_a_damaged_one_is_skipped(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    story = begun(database, 1)
    for number in range(1, 5):
        take_snapshot(f"postgres:{database}")
        story.lease(number)
    journal = story.journal
    assert isinstance(journal, PostgresJournal)
    seqs = journal.snapshot_store.seqs()
    assert len(seqs) == 2
    edit(database, f"UPDATE aliquot.snapshots SET data = set_byte(data, 100, 7) WHERE seq = {seqs[0]}")
    with caplog.at_level(logging.WARNING):
        again = replay(journal)
    assert "damaged" in caplog.text
    assert again.snapshot_seq == seqs[1]
    assert state_hash(again.state) == state_hash(story.state)
    journal.close()


def test_a_damaged_record_stops_the_replay_and_says_what_to_do(database: str) -> None:
    story = begun(database)
    edit(database, "UPDATE aliquot.groups SET payload = set_byte(payload, 5, 7) WHERE last_seq = 4")
    with pytest.raises(JournalCorrupt) as refusal:
        replay(story.journal)
    assert "restore" in refusal.value.hint
    story.journal.close()


def test_a_journal_of_a_newer_format_is_refused(database: str) -> None:
    begun(database).journal.close()
    edit(database, "UPDATE aliquot.meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(JournalTooNew):
        PostgresJournal(database).open()


def test_two_coordinators_may_make_the_tables_at_the_same_moment(database: str) -> None:
    journals = [PostgresJournal(database) for _ in range(4)]
    threads = [threading.Thread(target=journal.open) for journal in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({journal.pool_secret for journal in journals}) == 1
    for journal in journals:
        journal.close()


def test_the_fence_ends_the_sessions_of_a_frozen_writer_that_holds_its_lock(database: str) -> None:
    old = begun(database)
    holder = psycopg.connect(database, application_name="aliquot journal writer")
    holder.execute("SELECT leader_epoch FROM aliquot.fence FOR SHARE")  # and never another word
    usurper = PostgresJournal(database)
    usurper.open()
    assert usurper.raise_leader_epoch() == 2
    with pytest.raises(psycopg.OperationalError):
        holder.execute("SELECT 1")
    holder.close()
    with pytest.raises(JournalUnavailable):
        old.lease(50)
    with pytest.raises(NotLeader):
        old.journal.recover()
    usurper.close()
    old.journal.close()


def test_a_slower_candidate_of_an_older_epoch_is_refused(database: str) -> None:
    fast, slow = PostgresJournal(database), PostgresJournal(database)
    fast.open()
    slow.open()
    fast.fence(7)
    slow.open()  # its session was ended
    with pytest.raises(NotLeader):
        slow.fence(6)
    fast.close()
    slow.close()


def test_a_statement_left_on_the_way_does_not_arrive_after_recovery(database: str) -> None:
    """What an earlier connection of the same leader sent is refused once the journal was read again."""
    story = begun(database)
    first = story.journal
    assert isinstance(first, PostgresJournal)
    link, writer = first._link, first._writer
    first._link = None
    first.recover()
    assert first._writer != writer
    late = PostgresJournal(database)
    late._link, late._writer, late._epoch = link, writer, first._epoch
    late.resume_after(first.last_seq, first._last_digest)
    story.journal = late
    with pytest.raises(NotLeader):
        story.lease(50)
    late.close()
    first.close()


def test_a_frozen_server_is_an_error_and_not_a_wait_without_end(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aliquot.coordinator.writing.journal.postgres.STATEMENT_TIMEOUT_S", 0.5)
    story = begun(database)
    postgres.freeze()
    try:
        with pytest.raises(JournalUnavailable):
            story.lease(50)
    finally:
        postgres.thaw()
    story.journal.recover()
    again = replay(story.journal)
    story.journal.resume_after(again.state.seq, again.digest)
    story.go_on_with(again.state)
    story.lease(51)
    assert "l-51" in replay(story.journal).state.leases
    story.journal.close()


def test_a_connection_string_that_makes_no_sense_is_the_users_to_correct() -> None:
    with pytest.raises(ConfigError):
        PostgresJournal("no such=thing here").open()


def test_nobody_there_is_tried_again() -> None:
    with pytest.raises(JournalUnavailable):
        PostgresJournal("host=127.0.0.1 port=1").open()


def test_a_journal_goes_to_a_file_and_back(database: str, postgres: Postgres, tmp_path: Path) -> None:
    story = begun(database, 6)
    take_snapshot(f"postgres:{database}")
    story.lease(6)
    file, other = tmp_path / "copy.db", postgres.database("restored")
    tools = build_parser(commands(["journal"]))
    for arguments in (
        ["verify", f"postgres:{database}"],
        ["backup", f"postgres:{database}", str(file)],
        ["restore", str(file), f"postgres:{other}", "--up-to", str(story.state.seq)],
        ["verify", f"postgres:{other}"],
    ):
        args = tools.parse_args(["journal", *arguments])
        assert args.run(args) == 0
    copy = PostgresJournal(other)
    assert state_hash(replay(copy).state) == state_hash(story.state)
    assert copy.identity()[0] == story.journal.pool_secret
    copy.close()
    story.journal.close()

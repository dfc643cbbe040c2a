"""`aliquot journal`: what it finds, what it copies, and that it never changes the journal it looks at."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.cli._parser import UsageError
from aliquot.cli.main import build_parser, commands
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.errors import JournalCorrupt
from aliquot.coordinator.writing.journal.base import StoredSnapshot
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.snapshots import SnapshotFolder
from aliquot.coordinator.writing.journal.snapshotter import take_snapshot
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal, snapshot_folder_of
from tests.journal import saved
from tests.journal.facts import Story, damage, opened, written

Capture = pytest.CaptureFixture[str]


def tool(capsys: Capture, *arguments: object) -> tuple[int, dict[str, Any]]:
    """Run the command as the command line does; its code, and its last line."""
    code = aliquot("journal", *arguments, "--json")
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def aliquot(*arguments: object) -> int:
    """As the entry point makes it a command, whether or not this installation is new enough to know it."""
    args = build_parser(commands(["journal"])).parse_args(list(map(str, arguments)))
    return int(args.run(args))


def books(path: Path) -> str:
    journal = SqliteJournal(path)
    return state_hash(replay(journal).state)


def compacted(path: Path) -> Story:
    """Two snapshots, and no facts from before the first."""
    story = Story(opened(path))
    story.begin()
    for number in range(5):
        story.lease(number)
    first = take_snapshot(path)
    for number in range(5, 9):
        story.lease(number)
    take_snapshot(path)
    story.lease(9)
    seq = first["seq"]
    assert isinstance(seq, int)
    story.journal.prune(seq, 1000)
    return story


def test_a_sound_journal_is_verified_while_it_is_in_use(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    code, said = tool(capsys, "verify", tmp_path / "j.db")
    assert (code, said["ok"]) == (0, True)
    assert said["seq"] == story.state.seq
    assert said["state_hash"] == state_hash(story.state)
    story.journal.close()


def test_a_damaged_record_is_found_and_nothing_is_cut_off(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 5)
    damage(tmp_path / "j.db", story.state.seq)
    before = (tmp_path / "j.db").read_bytes()
    code, said = tool(capsys, "verify", tmp_path / "j.db")
    assert (code, said["ok"]) == (1, False)
    assert "damaged" in said["problem"]
    assert (tmp_path / "j.db").read_bytes() == before


def test_a_backup_of_a_journal_in_use_is_a_journal(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    code, said = tool(capsys, "backup", tmp_path / "j.db", tmp_path / "copy.db")
    assert (code, said["state_hash"]) == (0, state_hash(story.state))
    story.lease(20)  # the source goes on
    story.journal.close()
    again = opened(tmp_path / "copy.db")
    assert again.pool_secret == story.journal.pool_secret
    again.close()
    with pytest.raises(ConfigError):
        tool(capsys, "backup", tmp_path / "j.db", tmp_path / "copy.db")
    (tmp_path / "copy.db").unlink()
    with pytest.raises(ConfigError, match=r"copy.db.* exists"):
        tool(capsys, "backup", tmp_path / "j.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists(), "half a copy looks like a whole one"
    with pytest.raises(ConfigError, match="is no folder"):
        tool(capsys, "backup", tmp_path / "j.db", tmp_path / "nowhere" / "copy.db")


def test_going_back_to_a_fact_gives_the_books_of_that_moment(tmp_path: Path, capsys: Capture) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.begin()
    story.lease(1)
    then, seq = state_hash(story.state), story.state.seq
    story.lease(2)
    story.journal.raise_leader_epoch()
    story.journal.close()
    _, said = tool(capsys, "restore", tmp_path / "j.db", tmp_path / "then.db", "--up-to", seq)
    assert said["seq"] == seq
    assert books(tmp_path / "then.db") == then
    _, epoch = SqliteJournal(tmp_path / "then.db").identity()
    assert epoch >= 2  # agents have obeyed the later leader


def test_going_back_to_a_time(tmp_path: Path, capsys: Capture) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.now_ms = 1_790_000_000_000
    story.begin()
    story.lease(1)
    then = state_hash(story.state)
    story.now_ms += 60_000
    story.lease(2)
    story.journal.close()
    tool(capsys, "restore", tmp_path / "j.db", tmp_path / "then.db", "--until", "2026-09-21T14:13:30Z")
    assert books(tmp_path / "then.db") == then


def test_going_back_starts_from_a_snapshot_where_older_facts_are_gone(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    story.journal.close()
    _, said = tool(capsys, "restore", tmp_path / "j.db", tmp_path / "then.db", "--up-to", story.state.seq - 4)
    assert 0 < said["snapshot_seq"] <= said["seq"] <= story.state.seq - 4
    assert tool(capsys, "verify", tmp_path / "then.db")[0] == 0


def test_of_a_folder_of_backups_the_newest_is_restored(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    story = written(tmp_path / "j.db", 5)
    # Younger by its time, not by its name: a file may have been kept under another.
    for name, up_to, written_s in (("b.db", story.state.seq - 3, 100), ("a.db", story.state.seq, 200)):
        tool(capsys, "restore", tmp_path / "j.db", folder / name, "--up-to", up_to)
        os.utime(folder / name, (written_s, written_s))
    code, said = tool(capsys, "restore", folder, tmp_path / "then.db")
    assert code == 0
    assert (said["journal"], said["seq"]) == (str(folder / "a.db"), story.state.seq)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no journal at"):
        tool(capsys, "restore", tmp_path / "empty", tmp_path / "other.db")


@pytest.mark.root("to restore for somebody else")
def test_the_newest_is_restored_and_belongs_to_whom_the_folder_does(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 5)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 54_321, 54_321)
    _, said = tool(capsys, "restore", tmp_path / "j.db", home / "coordinator.db")
    assert said["seq"] == story.state.seq
    assert books(home / "coordinator.db") == state_hash(story.state)
    owners = {each.stat().st_uid for each in home.rglob("*") if not each.name.endswith(("-wal", "-shm"))}
    assert owners == {54_321}


def test_a_restored_journal_is_written_on(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    story.journal.close()
    tool(capsys, "repair", tmp_path / "j.db", tmp_path / "new.db")
    journal = opened(tmp_path / "new.db")
    again = replay(journal)
    assert state_hash(again.state) == state_hash(story.state)
    journal.resume_after(again.state.seq, again.digest)
    story.journal = journal
    story.lease(30)
    journal.close()
    assert books(tmp_path / "new.db") == state_hash(story.state)


def test_repair_keeps_what_can_be_believed(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 6)
    damage(tmp_path / "j.db", story.state.seq - 2)
    _, said = tool(capsys, "repair", tmp_path / "j.db", tmp_path / "new.db")
    assert "damaged" in said["left_out"]
    code, verified = tool(capsys, "verify", tmp_path / "new.db")
    assert code == 0
    assert story.state.seq - 4 <= verified["seq"] < story.state.seq - 2


def test_a_copy_that_fails_leaves_nothing_that_looks_like_a_journal(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    story.journal.close()
    (tmp_path / "new.db.part").write_text("of a copy that was killed")
    damage(tmp_path / "j.db", story.state.seq)
    with pytest.raises(JournalCorrupt):
        aliquot("journal", "restore", tmp_path / "j.db", tmp_path / "new.db", "--up-to", story.state.seq)
    assert not list(tmp_path.glob("new*"))
    assert tool(capsys, "repair", tmp_path / "j.db", tmp_path / "new.db")[0] == 0
    assert {path.name for path in tmp_path.glob("new*")} == {"new.db", "new.db.snapshots"}
    assert (tmp_path / "new.db").stat().st_mode & 0o077 == 0
    assert tool(capsys, "verify", tmp_path / "new.db")[1]["ok"]


def test_facts_are_exported_one_a_line(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 2)
    assert aliquot("journal", "dump", tmp_path / "j.db", "--json") == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [fact["seq"] for fact in facts] == list(range(1, story.state.seq + 1))
    assert facts[0]["fact"] == "LeaderStarted"
    granted = next(fact for fact in facts if fact["fact"] == "LeaseGranted")
    assert granted["slices"][0]["plan"]["share_milli"] == 10
    assert aliquot("journal", "dump", tmp_path / "j.db") == 0
    assert "LeaseGranted" in capsys.readouterr().out


def test_a_journal_that_is_not_there_is_not_made(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(ConfigError):
        tool(capsys, "verify", tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("name", sorted(saved.MEANINGS))
def test_saved_journals_mean_what_they_always_meant(tmp_path: Path, name: str) -> None:
    path = saved.unpack(name, tmp_path)
    again = replay(SqliteJournal(path))
    assert saved.hash_of(again.state) == saved.MEANINGS[name]
    assert again.snapshot_seq > 0
    snapshot_folder_of(path).rename(tmp_path / "aside")
    from_facts = replay(SqliteJournal(path)).state
    assert saved.hash_of(from_facts) == saved.MEANINGS[name]
    if name in saved.OF_THE_RELEASE:
        assert saved.released(from_facts) == saved.released(again.state), "its facts come to what its snapshot says"
    journal = opened(path)  # and it can be written by this version
    journal.resume_after(again.state.seq, again.digest)
    story = Story(journal)
    story.go_on_with(again.state)
    story.now_ms = again.state.now_ms
    story.lease(777)
    journal.close()


def lines(capsys: Capture, *arguments: object) -> list[str]:
    """What the command prints for people."""
    assert aliquot("journal", *arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_facts_from_one_to_another_are_shown(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 3)
    last = story.state.seq
    for after, up_to in ((0, 1), (1, 2), (1, last - 1), (last - 1, last), (last, last), (2, last + 5)):
        said = lines(capsys, "dump", tmp_path / "j.db", "--after", after, "--up-to", up_to, "--json")
        assert [json.loads(line)["seq"] for line in said] == list(range(after + 1, min(up_to, last) + 1))
        said = lines(capsys, "dump", tmp_path / "j.db", "--after", after, "--up-to", up_to)
        shown = [int(line.split()[0]) for line in said if not line.startswith("--")]
        assert shown == list(range(after + 1, min(up_to, last) + 1))


def test_facts_are_shown_with_their_number_time_and_fields(tmp_path: Path, capsys: Capture) -> None:
    story = written(tmp_path / "j.db", 1)
    first, *facts = lines(capsys, "dump", tmp_path / "j.db")
    groups = list(story.journal.groups(0))
    last = groups[0].group.last_seq
    assert first == f"-- facts 1 to {last}, record {groups[0].digest.hex()[:12]}"
    assert facts[0].startswith("        1 1970-01-01T00:00:01.001+00:00 LeaderStarted ")
    assert "at_ms=" not in facts[0]
    exported = [json.loads(line) for line in lines(capsys, "dump", tmp_path / "j.db", "--json")]
    assert exported[0]["at_ms"] == 1001
    assert "78" * 32 in json.dumps(exported), "bytes are shown in hexadecimal"


def test_what_verify_finds_is_printed_for_people_too(tmp_path: Path, capsys: Capture) -> None:
    story = compacted(tmp_path / "j.db")
    said = dict(line.split(maxsplit=1) for line in lines(capsys, "verify", tmp_path / "j.db"))
    assert said["ok"] == "True"
    assert "problem" not in said
    assert (said["leases"], said["nodes"], said["leader_epoch"]) == ("10", "1", "1")
    assert int(said["snapshot_seq"]) + int(said["facts_after_snapshot"]) == story.state.seq
    story.journal.close()
    damage(tmp_path / "j.db", story.state.seq)
    assert aliquot("journal", "verify", tmp_path / "j.db") == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["digest", "books"])
def test_a_snapshot_that_is_not_what_the_facts_give_is_found(tmp_path: Path, capsys: Capture, part: str) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.begin()
    take_snapshot(tmp_path / "j.db")
    story.lease(1)
    take_snapshot(tmp_path / "j.db")
    story.journal.close()
    assert tool(capsys, "verify", tmp_path / "j.db")[1]["ok"]
    folder = SnapshotFolder(snapshot_folder_of(tmp_path / "j.db"))
    newest, _ = folder.read()
    if part == "digest":
        newest = StoredSnapshot(newest.snapshot, bytes(32))
    else:
        newest = StoredSnapshot(msgspec.structs.replace(newest.snapshot, next_entry=99), newest.digest)
    folder.write(newest)
    code, said = tool(capsys, "verify", tmp_path / "j.db")
    assert (code, said["ok"]) == (1, False)
    assert said["problem"] == f"the snapshot of fact {story.state.seq} is not what the facts up to there give"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("yesterday", "is no time"), ("2026-11-21T09:30:00", "names no time zone"), ("123", "no time")],
)
def test_a_moment_that_is_none_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        aliquot("journal", "restore", tmp_path / "j.db", tmp_path / "new.db", "--until", text)


def test_a_moment_is_a_time_with_its_zone_or_milliseconds(tmp_path: Path, capsys: Capture) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.now_ms = 1_790_000_000_000
    story.begin()
    story.lease(1)
    last_ms = story.now_ms
    story.now_ms += 999
    story.lease(2)
    story.journal.close()
    at = dt.datetime.fromtimestamp(last_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    for number, (text, leases) in enumerate(
        ((at, 1), (str(last_ms), 1), (str(last_ms - 1), 0), (f"{last_ms + 1000}", 2))
    ):
        _, said = tool(capsys, "restore", tmp_path / "j.db", tmp_path / f"{number}.db", "--until", text)
        assert len(replay(SqliteJournal(tmp_path / f"{number}.db")).state.leases) == leases
        assert (said["facts"], said["snapshot_seq"]) == (said["seq"], 0)
        assert "left_out" not in said
        if leases == 1:
            assert said["at"] == at


def test_what_was_compacted_away_cannot_be_gone_back_to(tmp_path: Path, capsys: Capture) -> None:
    compacted(tmp_path / "j.db").journal.close()
    with pytest.raises(JournalCorrupt, match="no snapshot is older"):
        tool(capsys, "restore", tmp_path / "j.db", tmp_path / "new.db", "--up-to", 3)
    assert not list(tmp_path.glob("new*"))


def test_a_copy_goes_from_the_first_fact_on_where_all_are_there(tmp_path: Path, capsys: Capture) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.begin()
    take_snapshot(tmp_path / "j.db")
    story.lease(1)
    story.journal.close()
    _, said = tool(capsys, "restore", tmp_path / "j.db", tmp_path / "new.db", "--up-to", story.state.seq)
    assert (said["snapshot_seq"], said["facts"]) == (0, story.state.seq)
    assert not snapshot_folder_of(tmp_path / "new.db").exists()
    _, said = tool(capsys, "repair", tmp_path / "j.db", tmp_path / "repaired.db")
    assert 0 < said["snapshot_seq"] < said["seq"] == story.state.seq
    assert said["facts"] == story.state.seq - said["snapshot_seq"]


def test_nothing_is_overwritten_by_a_copy(tmp_path: Path, capsys: Capture) -> None:
    written(tmp_path / "j.db", 1)
    (tmp_path / "a.db").touch()
    snapshot_folder_of(tmp_path / "b.db").mkdir()
    for name in ("a.db", "b.db"):
        with pytest.raises(ConfigError, match="exists"):
            tool(capsys, "repair", tmp_path / "j.db", tmp_path / name)
    assert (tmp_path / "a.db").stat().st_size == 0


def test_a_backup_has_the_snapshots_and_nothing_else_of_their_folder(tmp_path: Path, capsys: Capture) -> None:
    compacted(tmp_path / "j.db").journal.close()
    (snapshot_folder_of(tmp_path / "j.db") / "1.part-7").touch()
    kept = {path.name for path in snapshot_folder_of(tmp_path / "j.db").glob("*.snap")}
    (snapshot_folder_of(tmp_path / "j.db") / "0.snap").symlink_to("gone")  # like one that goes away meanwhile
    assert tool(capsys, "backup", f"sqlite:{tmp_path / 'j.db'}", f"sqlite:{tmp_path / 'copy.db'}")[0] == 0
    copied = snapshot_folder_of(tmp_path / "copy.db")
    assert copied.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in copied.iterdir()} == kept
    written(tmp_path / "young.db", 1)
    assert tool(capsys, "backup", tmp_path / "young.db", tmp_path / "copy-2.db")[0] == 0
    assert not snapshot_folder_of(tmp_path / "copy-2.db").exists()


def test_a_copy_starts_from_a_snapshot_where_only_the_first_fact_is_gone(tmp_path: Path, capsys: Capture) -> None:
    story = Story(opened(tmp_path / "j.db"))
    story.tell(c.StartLeading(1))
    assert story.state.seq == 1
    take_snapshot(tmp_path / "j.db")
    story.begin(2)
    assert story.journal.prune(1, 1) == 1
    story.journal.close()
    _, said = tool(capsys, "restore", tmp_path / "j.db", tmp_path / "new.db", "--up-to", story.state.seq)
    assert (said["snapshot_seq"], said["seq"]) == (1, story.state.seq)


def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database, database:
        database.execute("CREATE TABLE other (a)")
    with pytest.raises(JournalCorrupt, match="is no journal of a coordinator") as refusal:
        aliquot("journal", "restore", tmp_path / "other.db", tmp_path / "new.db")
    assert refusal.value.hint.startswith("name the file as --journal does")
    for name in ("", "/", "sqlite:"):
        with pytest.raises(ConfigError, match="names no file"):
            aliquot("journal", "verify", name)


READING = (["verify"], ["dump"], ["backup", "new.db"], ["restore", "new.db"], ["repair", "new.db"])
WRITING = ("backup", "restore", "repair")


def refusal_of(*arguments: object) -> AliquotError:
    """What the command ends with."""
    with pytest.raises(AliquotError) as refusal:
        aliquot("journal", *arguments)
    assert refusal.value.hint, "it says what to do"
    assert "by itself" not in refusal.value.hint, "nothing is tried again when a command has ended"
    return refusal.value


@pytest.mark.parametrize("action", READING, ids=lambda action: action[0])
@pytest.mark.parametrize(
    ("name", "problem", "todo"),
    [
        ("text.db", "is no journal of a coordinator: file is not a database", "restore the newest backup"),
        ("empty.db", "is no journal of a coordinator", "name the file as --journal does"),
        ("other.db", "is no journal of a coordinator", "name the file as --journal does"),
        ("folder.db", "there is no journal at .*folder.db", "name the file"),
        ("gone.db", "there is no journal at .*gone.db", "name the file"),
    ],
)
def test_what_is_not_a_journal_is_neither_read_nor_copied(
    tmp_path: Path, action: list[str], name: str, problem: str, todo: str
) -> None:
    (tmp_path / "text.db").write_text("a page of prose\n" * 99)
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder.db").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE meta (a)")
    before = set(tmp_path.iterdir())
    error = refusal_of(action[0], tmp_path / name, *(tmp_path / target for target in action[1:]))
    assert re.search(problem, error.message)
    assert todo in error.hint
    assert set(tmp_path.iterdir()) == before, "half a copy looks like a whole one"


@pytest.mark.parametrize("action", WRITING)
def test_no_copy_is_made_where_something_is_or_nothing_can_be(tmp_path: Path, action: str) -> None:
    written(tmp_path / "j.db", 1).journal.close()
    (tmp_path / "folder.db").mkdir()
    for target, problem in (("folder.db", "exists"), ("j.db", "exists"), ("j.db/new.db", "is no folder")):
        assert problem in refusal_of(action, tmp_path / "j.db", tmp_path / target).message
    assert not list((tmp_path / "folder.db").iterdir())


@pytest.mark.root("to become somebody who may not")
def test_who_may_not_read_or_write_there_is_told_so(tmp_path: Path) -> None:
    closed, own = tmp_path / "closed", tmp_path / "own"
    closed.mkdir(mode=0o700)
    written(closed / "j.db", 1).journal.close()
    written(tmp_path / "root.db", 1).journal.close()
    own.mkdir()
    written(own / "j.db", 1).journal.close()
    for path in (own, *own.iterdir()):
        os.chown(path, 65_534, 65_534)
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    os.seteuid(65_534)
    try:
        for action, *target in READING:
            for source in (closed / "j.db", tmp_path / "root.db"):
                error = refusal_of(action, source, *(own / name for name in target))
                assert str(source) in error.message
                assert "this user may read" in error.hint
        for action in WRITING:
            for target_path in (closed / "new.db", tmp_path / "new.db"):
                error = refusal_of(action, own / "j.db", target_path)
                assert str(target_path) in error.message
                assert "Permission denied" in error.message
                assert "this user may read and write it and its folder" in error.hint
    finally:
        os.seteuid(0)
    assert {path.name for path in own.iterdir()} <= {"j.db", "j.db-wal", "j.db-shm"}

"""`aliquot journal` on a PostgreSQL that is away, refuses, or holds something else: each says what to do, and a command
that has ended promises nothing that a coordinator would do.
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest

from aliquot.cli.main import build_parser, commands
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.coordinator.errors import JournalCorrupt, JournalUnavailable
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from tests.failover.server import Postgres
from tests.journal.facts import damage, written

pytestmark = pytest.mark.postgres

READING = (["verify"], ["dump"], ["backup", "new.db"], ["restore", "new.db"], ["repair", "new.db"])
WRITING = ("backup", "restore", "repair")
SEE = "see that it runs, answers from here, and has the database and the user of the connection string; the password"


def refusal_of(*arguments: object) -> AliquotError:
    """What the command ends with."""
    args = build_parser(commands(["journal"])).parse_args(["journal", *map(str, arguments)])
    with pytest.raises(AliquotError) as refusal:
        args.run(args)
    return refusal.value


def refusals(conninfo: str, folder: Path, *, target: bool = True) -> list[AliquotError]:
    """Of each tool, with this database as the journal it reads and, where there is any, the one it makes."""
    written(folder / "good.db", 1).journal.close()
    journal = f"postgres:{conninfo}"
    said = [refusal_of(action, journal, *(folder / name for name in target)) for action, *target in READING]
    said += [refusal_of(action, folder / "good.db", journal) for action in WRITING if target]
    assert not list(folder.glob("new*")), "nothing looks like a copy"
    return said


def locked(postgres: Postgres) -> str:
    """A role that needs a password, which it has."""
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS locked")
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        (rules,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        path = Path(rules)
        if "locked" not in (before := path.read_text()):
            path.write_text(f"host all locked all scram-sha-256\n{before}")
            connection.execute("SELECT pg_reload_conf()")
    return f"host=127.0.0.1 port={postgres.port} user=locked dbname=postgres"


def turned_away(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return True
    return False


def test_a_server_that_cannot_be_had_is_told_with_what_to_see_to(postgres: Postgres, tmp_path: Path) -> None:
    needs_password = locked(postgres)
    deadline = time.monotonic() + 60
    while not turned_away(needs_password):  # the server rereads its rules in its own time
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for number, (conninfo, problem) in enumerate(
        (
            ("host=127.0.0.1 port=1 user=aliquot dbname=x", "Connection refused"),
            (f"{needs_password} password=wrong", "password authentication failed"),
            (needs_password, "no password supplied"),
            (postgres.conninfo("absent"), 'database "absent" does not exist'),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for error in refusals(conninfo, folder):
            assert isinstance(error, JournalUnavailable)
            assert problem in error.message
            assert error.hint.startswith(SEE)


def test_another_programs_tables_are_no_journal_and_stay_as_they_are(database: str, tmp_path: Path) -> None:
    for number, tables in enumerate(("meta (value int)", "fence (a int)", "groups (last_seq int)")):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS aliquot CASCADE")
            connection.execute("CREATE SCHEMA aliquot")
            connection.execute(f"CREATE TABLE aliquot.{tables}".encode())
        folder = tmp_path / str(number)
        folder.mkdir()
        for error in refusals(database, folder):
            assert isinstance(error, JournalCorrupt)
            assert error.message.startswith("this database holds no journal of a coordinator: ")
            assert "LINE 1" not in error.message
            assert "a database that nothing else uses" in error.hint
        with psycopg.connect(database) as connection:
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'aliquot'").fetchone()
        assert found == (1,)


def test_an_empty_database_is_no_journal_and_takes_one_once(database: str, tmp_path: Path) -> None:
    for error in refusals(database, tmp_path, target=False):
        assert isinstance(error, JournalCorrupt)
        assert error.hint.startswith("name that of --journal")
    args = build_parser(commands(["journal"])).parse_args(
        ["journal", "restore", str(tmp_path / "good.db"), f"postgres:{database}"]
    )
    assert args.run(args) == 0
    for action in WRITING:
        error = refusal_of(action, tmp_path / "good.db", f"postgres:{database}")
        assert isinstance(error, ConfigError)
        assert "the target is not empty" in error.message
        assert "name another" in error.hint


def test_half_a_copy_is_no_journal(database: str, tmp_path: Path) -> None:
    """To nobody: not to the tools, nor to a coordinator, which begins by opening it."""
    story = written(tmp_path / "good.db", 5)
    story.journal.close()
    damage(tmp_path / "good.db", story.state.seq)
    error = refusal_of("restore", tmp_path / "good.db", f"postgres:{database}")
    assert "is damaged" in error.message
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM aliquot.groups").fetchone() == (True,)
    for error in (
        refusal_of("verify", f"postgres:{database}"),
        refusal_of("backup", f"postgres:{database}", tmp_path / "new.db"),
        refusal_of("repair", tmp_path / "good.db", f"postgres:{database}"),
    ):
        assert isinstance(error, JournalCorrupt)
        assert error.message == "a copy into this database is under way, or ended before it was whole"
        assert "DROP SCHEMA aliquot CASCADE" in error.hint
    with pytest.raises(JournalCorrupt, match="before it was whole"):
        PostgresJournal(database).open()
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA aliquot CASCADE")
    args = build_parser(commands(["journal"])).parse_args(
        ["journal", "repair", str(tmp_path / "good.db"), f"postgres:{database}"]
    )
    assert args.run(args) == 0
    PostgresJournal(database).open()

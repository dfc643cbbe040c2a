"""The default journal: one SQLite file, one row per commit group, synced before anybody hears of it.

WAL with `synchronous=FULL` syncs the log at every commit. A commit is a single statement that inserts the row only
while the leader epoch on disk is ours: one transaction, and few crossings between the journal thread and SQLite,
which matters because each of them waits for the interpreter lock.

SQLite already drops a transaction that was torn by a power cut. What it does not notice is a damaged page; our own
chain of digests does. A damaged last record is moved to a file of its own, and a warning says so;
one in the middle stops the start, because everything after it was decided on top of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import JournalCorrupt, JournalError, JournalTooNew, JournalUnavailable, NotLeader
from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import NO_DIGEST, StoredGroup
from aliquot.coordinator.writing.journal.chained import StoredJournal
from aliquot.coordinator.writing.journal.snapshots import SnapshotFolder

log = logging.getLogger(__name__)

FORMAT = 1
"""Of the tables. Migrations turn an older one into this one, one step each."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (
    last_seq INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    previous BLOB NOT NULL,
    payload BLOB NOT NULL,
    digest BLOB NOT NULL
);
"""
_COLUMNS = "version, first_seq, last_seq, previous, payload, digest"
_COMMIT = f"""
INSERT INTO groups ({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?
WHERE (SELECT value FROM meta WHERE key = 'leader_epoch') = ?
"""  # noqa: S608 - only our own constant
_CHECKPOINT_PAGES = 8192
"""32 MiB of log between checkpoints: each writes every page that changed, so rarer is cheaper."""
_BUSY_TIMEOUT_S = 5.0

_DAMAGED = (
    "copy the file, its -wal and its .snapshots folder away as they are; then `aliquot journal repair PATH NEW` writes "
    "what can be believed, or restore the newest backup, and start on that (docs/operations.md, A damaged journal)"
)


class SqliteJournal(StoredJournal):
    """See the module's docstring. One coordinator at a time: `leadership` holds the lock.

    `fsync_delay_ms` makes every commit as slow as a slow disk would: for measurements only.
    """

    damaged = _DAMAGED

    def __init__(self, path: Path, *, pool_secret: bytes = b"", fsync_delay_ms: int = 0) -> None:
        super().__init__(pool_secret, SnapshotFolder(snapshot_folder_of(path)))
        self.path = path
        self.place = str(path)
        self._fsync_delay_s = fsync_delay_ms / 1000
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Create or check the file, and cut off a damaged last record."""
        with translated(self.path):
            self._connection = connection = _connect(self.path)
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            _prepare(connection, self.path, self._own_secret())
            self.pool_secret = bytes(_meta(connection, "pool_secret"))
            self._check_tail(connection)

    def raise_leader_epoch(self, at_least: int = 0) -> int:
        """Durably take the next leader epoch, or a higher one."""
        connection = self._open_connection()
        with translated(self.path), _transaction(connection):
            self._epoch = max(int(_meta(connection, "leader_epoch")) + 1, at_least)
            connection.execute("UPDATE meta SET value = ? WHERE key = 'leader_epoch'", (self._epoch,))
        return self._epoch

    def _advance(self, epoch: int) -> int:
        statement = "UPDATE meta SET value = ? WHERE key = 'leader_epoch' AND value = ?"
        with translated(self.path):
            return self._open_connection().execute(statement, (epoch, self._epoch)).rowcount

    def _insert(self, record: codec.Record) -> int:
        """One statement, one synced transaction."""
        values = (
            record.version,
            record.first_seq,
            record.last_seq,
            record.previous,
            record.payload,
            record.digest,
            self._epoch,
        )
        with translated(self.path):
            inserted = self._open_connection().execute(_COMMIT, values).rowcount
        if self._fsync_delay_s:
            time.sleep(self._fsync_delay_s)
        return inserted

    def recover(self) -> None:
        """Open afresh, see that nobody took over, and write."""
        self.close()
        self.open()
        connection = self._open_connection()
        with translated(self.path):
            if int(_meta(connection, "leader_epoch")) != self._epoch:
                raise NotLeader(f"another coordinator has taken {self.path} over while it could not be written")
            connection.execute(
                "INSERT INTO meta VALUES ('probe', randomblob(4096)) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            )

    def identity(self) -> tuple[bytes, int]:
        """See `StoredJournal.identity`."""
        with translated(self.path):
            if not self.path.is_file():
                raise ConfigError(f"there is no journal at {self.path}", hint="name the file that --journal names")
            with contextlib.closing(_connect(self.path, read_only=True)) as connection:
                return bytes(_meta(connection, "pool_secret")), int(_meta(connection, "leader_epoch"))

    def back_up(self, target: Path) -> None:
        """Copy the file as it is at one moment, while it may be written, with SQLite's own means."""
        with translated(target):
            target.touch(mode=0o600, exist_ok=False)  # the pool's secret is in it
        with (
            translated(self.path),
            contextlib.closing(_connect(self.path, read_only=True)) as source,
            contextlib.closing(_connect(target)) as copy,
        ):
            source.backup(copy, pages=1024)

    def note_backup(self) -> None:
        """Leave beside the file that it has just been backed up. Raises JournalUnavailable."""
        with translated(self._stamp):
            self._stamp.unlink(missing_ok=True)  # it may be of another user, who made the backup before
            self._stamp.touch(mode=0o600)

    def backed_up_s(self) -> float:
        """When that was, in Unix seconds; 0: never."""
        with contextlib.suppress(OSError):
            return self._stamp.stat().st_mtime
        return 0.0

    @property
    def _stamp(self) -> Path:
        return self.path.with_name(f"{self.path.name}.backed-up")

    def groups(self, after_seq: int) -> Iterator[StoredGroup]:
        """Read over a connection of its own, so that it may run in any thread."""
        with translated(self.path), contextlib.closing(_connect(self.path, read_only=True)) as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM groups WHERE last_seq > ? ORDER BY last_seq",  # noqa: S608
                (after_seq,),
            )
            yield from self._checked(rows)

    def prune(self, up_to_seq: int, limit: int) -> int:
        """Drop old rows in one small transaction."""
        with translated(self.path):
            cursor = self._open_connection().execute(
                "DELETE FROM groups WHERE last_seq IN "
                "(SELECT last_seq FROM groups WHERE last_seq <= ? ORDER BY last_seq LIMIT ?)",
                (up_to_seq, limit),
            )
        return cursor.rowcount

    def close(self) -> None:
        """Close the file; SQLite folds its log into it."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise JournalUnavailable(f"the journal {self.path} is not open")
        return self._connection

    def _check_tail(self, connection: sqlite3.Connection) -> None:
        """Cut off the last record if it is damaged and the one before it is sound; replay looks at all others."""
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM groups ORDER BY last_seq DESC LIMIT 2"  # noqa: S608
        ).fetchall()
        records = [codec.Record(*row) for row in rows]
        if records and not codec.is_intact(records[0]):
            if len(records) > 1 and not codec.is_intact(records[1]):
                raise JournalCorrupt(f"the last two records of {self.path} are damaged", hint=_DAMAGED)
            self._cut_off(connection, records.pop(0))
        self.last_seq = records[0].last_seq if records else 0
        self._last_digest = records[0].digest if records else NO_DIGEST

    def _cut_off(self, connection: sqlite3.Connection, record: codec.Record) -> None:
        aside = self.path.with_name(f"{self.path.name}.cut-{record.last_seq}-{int(time.time())}")
        aside.write_bytes(record.payload)
        connection.execute("DELETE FROM groups WHERE last_seq = ?", (record.last_seq,))
        log.error(
            "THE LAST RECORD OF %s (facts %d to %d) IS DAMAGED AND WAS CUT OFF. What it said is lost unless a snapshot "
            "holds it; its bytes are kept in %s. Check the disk.",
            self.path,
            record.first_seq,
            record.last_seq,
            aside,
        )


def snapshot_folder_of(path: Path) -> Path:
    """Where the snapshots of the journal at `path` are."""
    return path.with_name(path.name + ".snapshots")


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    if not read_only:
        # Before SQLite makes it: its log beside it, which holds the pool's secret as soon as anything does, takes over
        # the mode that this file has then. A file that is there is not opened: closing it would drop SQLite's locks.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S, cached_statements=32
    )


def _prepare(connection: sqlite3.Connection, path: Path, secret: bytes) -> None:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'meta'").fetchone()
    if found is None:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise JournalCorrupt(f"{path} is an SQLite file, but no journal", hint="give --journal another path")
        with _transaction(connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [("format", FORMAT), ("leader_epoch", 0), ("pool_secret", secret)],
            )
        return
    written = int(_meta(connection, "format"))
    if written > FORMAT:
        raise JournalTooNew(
            f"{path} has format {written}; this version knows formats up to {FORMAT}",
            hint="start the version that wrote it, or a newer one; or give --journal another path for an empty pool",
        )


def _meta(connection: sqlite3.Connection, key: str) -> bytes:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise JournalCorrupt(f"the journal's own entry {key!r} is missing", hint=_DAMAGED)
    value: bytes = row[0]
    return value


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


class translated:  # noqa: N801 - used like a function; a generator would cost more on the hot path
    """Turns SQLite's errors into ours."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (sqlite3.Error, OSError)):
            return
        raise _as_ours(self._path, error) from error


def _as_ours(path: Path, error: Exception) -> JournalError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_CORRUPT:
        return JournalCorrupt(f"SQLite can't read {path}: {error}", hint=_DAMAGED)
    if primary in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB):  # our tables are not there, or the file's first bytes
        return JournalCorrupt(
            f"{path} is no journal of a coordinator: {error}",
            hint="name the file as --journal does; if it was one, restore the newest backup",
        )
    if primary == sqlite3.SQLITE_FULL:
        return JournalUnavailable(f"the disk of {path} is full", hint="make room on it")
    return JournalUnavailable(
        f"{path}: {getattr(error, 'strerror', None) or error}",
        hint="see that its disk works, that this user may read and write it and its folder, and nothing else locks it",
    )

"""The tables of a journal in PostgreSQL, and how a journal of an older format becomes one of this.

All are in the schema `aliquot`, one pool per database. `fence` and `leader` are two tables because they are locked by
different hands: every commit share-locks the fence, which changes only when leadership does, while the leader renews
its row several times a second and must never wait for a slow commit.
"""

from __future__ import annotations

from psycopg import sql

from aliquot.coordinator.errors import JournalCorrupt, JournalTooNew
from aliquot.coordinator.writing.journal.pglink import Link

FORMAT = 2
"""Of the tables. `_STEPS[n]` turns format n - 1 into n; 0 is an empty database."""

_LOCK = 0x616C6971
"""Of the advisory lock under which one coordinator at a time changes tables."""

NO_LEADER = sql.SQL("INSERT INTO aliquot.leader VALUES (true, 0, '', '', 0, '-infinity') ON CONFLICT DO NOTHING")
"""Puts the leader row there, free for whoever comes."""

_STEPS: dict[int, tuple[sql.SQL, ...]] = {
    1: (
        sql.SQL("CREATE SCHEMA IF NOT EXISTS aliquot"),
        sql.SQL("CREATE TABLE aliquot.meta (key text PRIMARY KEY, value bytea NOT NULL)"),
        # The row that every commit is conditional on. `writer` is one connection of the leader's: a statement that an
        # earlier one of its own left on the way must not arrive after the journal was read again.
        sql.SQL(
            "CREATE TABLE aliquot.fence (one boolean PRIMARY KEY CHECK (one), leader_epoch bigint NOT NULL,"
            " writer text NOT NULL)"
        ),
        sql.SQL("INSERT INTO aliquot.fence VALUES (true, 0, '')"),
        sql.SQL(
            "CREATE TABLE aliquot.leader (one boolean PRIMARY KEY CHECK (one), leader_epoch bigint NOT NULL,"
            " holder text NOT NULL, address text NOT NULL, session integer NOT NULL, expires_at timestamptz NOT NULL)"
        ),
        NO_LEADER,
        sql.SQL(
            "CREATE TABLE aliquot.groups (last_seq bigint PRIMARY KEY, first_seq bigint NOT NULL UNIQUE,"
            " version integer NOT NULL, previous bytea NOT NULL, payload bytea NOT NULL, digest bytea NOT NULL,"
            " leader_epoch bigint NOT NULL)"
        ),
        # Payloads don't compress worth the time, and stay in the row as long as they fit a page.
        sql.SQL("ALTER TABLE aliquot.groups ALTER COLUMN payload SET STORAGE EXTERNAL"),
        sql.SQL("ALTER TABLE aliquot.groups SET (toast_tuple_target = 8160)"),
        sql.SQL(
            "CREATE TABLE aliquot.snapshots (seq bigint, part integer, parts integer NOT NULL, data bytea NOT NULL,"
            " PRIMARY KEY (seq, part))"
        ),
        sql.SQL("ALTER TABLE aliquot.snapshots ALTER COLUMN data SET STORAGE EXTERNAL"),
    ),
    2: (sql.SQL("CREATE TABLE aliquot.coordinators (address text PRIMARY KEY, seen_at timestamptz NOT NULL)"),),
}

_GET = sql.SQL("SELECT value FROM aliquot.meta WHERE key = %s")
_PUT = sql.SQL("INSERT INTO aliquot.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value")
_DROP = sql.SQL("DELETE FROM aliquot.meta WHERE key = %s")
# Not to_regclass: it may answer from a cache that is older than the lock just waited for.
_FOUND = sql.SQL("SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'aliquot' AND tablename = 'meta')")


def prepare(link: Link, secret: bytes) -> bytes:
    """Make the tables, with that secret, or bring them to this format; returns the pool's secret. Raises JournalTooNew,
    JournalCorrupt or JournalUnavailable.
    """
    if _format(link) != FORMAT:
        with link.transaction():
            link.execute(sql.SQL("SELECT pg_advisory_xact_lock(%s::bigint)"), (_LOCK,))
            found = _format(link)  # another coordinator may have been faster
            for step in range(found + 1, FORMAT + 1):
                for statement in _STEPS[step]:
                    link.execute(statement, binary=False)
            if found == 0:
                link.execute(_PUT, ("pool_secret", secret))
            if found < FORMAT:
                link.execute(_PUT, ("format", b"%d" % FORMAT))
    return secret_of(link)


def mark(link: Link, *, whole: bool) -> None:
    """Put down that a copy is being written, or is whole."""
    if whole:
        link.execute(_DROP, ("half",))
    else:
        link.execute(_PUT, ("half", b""))


def secret_of(link: Link) -> bytes:
    """The pool's secret. Raises JournalCorrupt, also where only a part of a copy is there."""
    if link.execute(_GET, ("half",)):
        raise JournalCorrupt(
            "a copy into this database is under way, or ended before it was whole",
            hint="wait for it; or, where nothing writes it any more, DROP SCHEMA aliquot CASCADE and copy again",
        )
    rows = link.execute(_GET, ("pool_secret",))
    if not rows:
        raise JournalCorrupt(
            "the journal's own entry 'pool_secret' is missing", hint="restore the newest backup of the database"
        )
    return bytes(rows[0][0])


def _format(link: Link) -> int:
    if not link.execute(_FOUND)[0][0]:
        return 0
    rows = link.execute(_GET, ("format",))
    written = int(rows[0][0]) if rows else 0
    if written > FORMAT:
        raise JournalTooNew(
            f"the journal in PostgreSQL has format {written}; this version knows formats up to {FORMAT}",
            hint="start the version that wrote it, or a newer one; an empty pool needs another database",
        )
    return written

"""The journal in PostgreSQL, for a pool with several coordinators: one row per commit group.

A commit is one statement, and therefore one short transaction that the server finishes whatever becomes of us: it
inserts the row only while the fence row says our leader epoch and our connection, and share-locks that row, so that
whoever raises the fence waits for commits under way and is waited for by those that come later. After that, nothing
of an older leader can arrive any more.

The writer already makes groups of all that waits while a commit is under way. Pipelining a second commit behind the
first would gain little there: with 64 callers a commit takes 2 ms, in which the event loop decides the next group.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence

from psycopg import sql

from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.writing.journal import codec, pgschema
from aliquot.coordinator.writing.journal.base import NO_DIGEST, StoredGroup
from aliquot.coordinator.writing.journal.chained import StoredJournal
from aliquot.coordinator.writing.journal.pglink import Link
from aliquot.coordinator.writing.journal.pgsnapshots import SnapshotTable

STATEMENT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
WRITER = "aliquot journal writer"
"""How a leader's connection is called in `pg_stat_activity`."""

_COLUMNS = sql.SQL("version, first_seq, last_seq, previous, payload, digest")
_COMMIT = b"commit"
_COMMIT_STATEMENT = (
    b"INSERT INTO aliquot.groups (version, first_seq, last_seq, previous, payload, digest, leader_epoch)"
    b" SELECT $1::int, $2::bigint, $3::bigint, $4::bytea, $5::bytea, $6::bytea, leader_epoch"
    b" FROM aliquot.fence WHERE leader_epoch = $7::bigint AND writer = $8::text FOR SHARE"
)
_FENCE = sql.SQL("UPDATE aliquot.fence SET leader_epoch = %s, writer = %s WHERE leader_epoch < %s")
_FENCE_AGAIN = sql.SQL("UPDATE aliquot.fence SET writer = %s WHERE leader_epoch = %s")
_ADVANCE = sql.SQL("UPDATE aliquot.fence SET leader_epoch = %s WHERE leader_epoch = %s AND writer = %s")
_EPOCH = sql.SQL("SELECT leader_epoch FROM aliquot.fence")
_END_WRITERS = sql.SQL(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    " AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
)
_TAIL = sql.SQL("SELECT {} FROM aliquot.groups ORDER BY last_seq DESC LIMIT 1").format(_COLUMNS)
_GROUPS = sql.SQL("SELECT {} FROM aliquot.groups WHERE last_seq > %s ORDER BY last_seq").format(_COLUMNS)
_PRUNE = sql.SQL(
    "DELETE FROM aliquot.groups WHERE last_seq IN"
    " (SELECT last_seq FROM aliquot.groups WHERE last_seq <= %s ORDER BY last_seq LIMIT %s)"
)
_MEET = sql.SQL(
    "INSERT INTO aliquot.coordinators SELECT address, clock_timestamp() FROM unnest(%s::text[]) AS address"
    " ON CONFLICT (address) DO UPDATE SET seen_at = excluded.seen_at"
)
_FORGET = sql.SQL("DELETE FROM aliquot.coordinators WHERE seen_at < clock_timestamp() - interval '7 days'")
_MET = sql.SQL("SELECT address FROM aliquot.coordinators ORDER BY address LIMIT %s")
_CLOCK = sql.SQL("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
_PROBE = sql.SQL("INSERT INTO aliquot.meta VALUES ('probe', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value")
_DAMAGED = (
    "keep a dump of the schema aliquot as it is; then `aliquot journal repair postgres:CONNINFO NEW` writes what can "
    "be believed, or restore the newest backup of the database (docs/operations.md, A damaged journal)"
)


class PostgresJournal(StoredJournal):
    """See the module's docstring. `conninfo` is libpq's; secrets belong into PGPASSWORD, a password file or a service
    file.
    """

    place = "PostgreSQL"
    damaged = _DAMAGED

    def __init__(self, conninfo: str, *, pool_secret: bytes = b"") -> None:
        super().__init__(pool_secret, SnapshotTable(self.reader))
        self.conninfo = conninfo
        self._link: Link | None = None
        self._reading: Link | None = None
        self._reading_lock = threading.Lock()
        self._writer = ""

    def open(self) -> None:
        """Connect, and create or check the tables."""
        self.close()
        self._link = link = Link(self.conninfo, name=WRITER, timeout_s=STATEMENT_TIMEOUT_S)
        self.pool_secret = pgschema.prepare(link, self._own_secret())
        link.prepare(_COMMIT, _COMMIT_STATEMENT)
        rows = link.execute(_TAIL)
        self.last_seq, self._last_digest = (rows[0][2], rows[0][5]) if rows else (0, NO_DIGEST)

    def prepare(self) -> None:
        """Make the tables where there are none, without being taken for a writer, whose sessions a new leader ends."""
        with self.reader() as link:
            self.pool_secret = pgschema.prepare(link, self._own_secret())

    def raise_leader_epoch(self, at_least: int = 0) -> int:
        """Durably take the next leader epoch, or a higher one."""
        epoch = max(int(self._opened().execute(_EPOCH)[0][0]) + 1, at_least)
        self.fence(epoch)
        return epoch

    def fence(self, epoch: int) -> None:
        """Durably take this epoch, which must be higher than any before: from now on only we commit.

        Sessions of older writers are ended first: one that froze between two packets could hold the fence's lock.
        Raises NotLeader when a newer leader was faster.
        """
        link = self._opened()
        link.execute(_END_WRITERS, (WRITER,))
        writer = secrets.token_hex(8)
        if link.change(_FENCE, (epoch, writer, epoch)) != 1:
            raise NotLeader(f"a leader of an epoch above {epoch - 1} has taken the journal over")
        self._epoch, self._writer = epoch, writer

    def _advance(self, epoch: int) -> int:
        """If we are the fence's writer. The next leader takes one above it."""
        return self._opened().change(_ADVANCE, (epoch, self._epoch, self._writer))

    def _insert(self, record: codec.Record) -> int:
        """One statement, one synced transaction."""
        return self._opened().change_prepared(
            _COMMIT,
            record.version,
            record.first_seq,
            record.last_seq,
            record.previous,
            record.payload,
            record.digest,
            self._epoch,
            self._writer,
        )

    def recover(self) -> None:
        """Connect afresh, see that nobody took over, and write.

        The fence names the new connection before anything is read again, so that a commit that the old one left on
        the way either is in what is read or never arrives.
        """
        self.open()
        writer = secrets.token_hex(8)
        link = self._opened()
        if link.change(_FENCE_AGAIN, (writer, self._epoch)) != 1:
            raise NotLeader("another coordinator has taken the journal over while it could not be written")
        self._writer = writer
        link.execute(_PROBE, (secrets.token_bytes(64),))

    def fills(self, *, whole: bool) -> None:
        """See `StoredJournal.fills`."""
        pgschema.mark(self._opened(), whole=whole)

    def identity(self) -> tuple[bytes, int]:
        """See `StoredJournal.identity`."""
        with self.reader() as link:
            return pgschema.secret_of(link), int(link.execute(_EPOCH)[0][0])

    def meet(self, addresses: Sequence[str], at_most: int) -> tuple[str, ...]:
        """Put down where a coordinator is reached, and give where all are that were seen within a week."""
        with self.reader() as link:
            link.execute(_MEET, (list(addresses),))
            link.execute(_FORGET)
            return tuple(address for (address,) in link.execute(_MET, (at_most,)))

    def clock_ahead_ms(self, now_ms: Callable[[], int]) -> int:
        """How far this clock is ahead of the database's (negative: behind), at least: what the question took does not
        count.
        """
        with self.reader() as link:
            before_ms = now_ms()
            there_ms = int(link.execute(_CLOCK)[0][0])
            after_ms = now_ms()
        return max(0, before_ms - there_ms) + min(0, after_ms - there_ms)

    def groups(self, after_seq: int) -> Iterator[StoredGroup]:
        """Read over a connection of its own, so that it may run in any thread; one reader at a time."""
        with self.reader() as link, contextlib.closing(link.rows(_GROUPS, (after_seq,))) as rows:
            yield from self._checked(rows)

    def prune(self, up_to_seq: int, limit: int) -> int:
        """Drop old rows in one small transaction."""
        return self._opened().change(_PRUNE, (up_to_seq, limit))

    def close(self) -> None:
        """Close all connections."""
        links, self._link, self._reading = (self._link, self._reading), None, None
        for link in links:
            if link is not None:
                link.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[Link]:
        """The connection for reading; made again when it was lost."""
        with self._reading_lock:
            if self._reading is None:
                self._reading = Link(self.conninfo, name="aliquot journal reader", timeout_s=READ_TIMEOUT_S)
            try:
                yield self._reading
            except JournalUnavailable:
                reading, self._reading = self._reading, None
                if reading is not None:
                    reading.close()
                raise

    def _opened(self) -> Link:
        if self._link is None:
            raise JournalUnavailable("the journal in PostgreSQL is not open")
        return self._link

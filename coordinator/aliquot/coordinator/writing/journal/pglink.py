"""One connection to PostgreSQL that can't hang for ever, and errors of PostgreSQL in our words.

libpq waits as long as the server takes, and a server that is stopped, or behind a network that swallows packets, takes
for ever. So time is bounded at both ends: the server ends statements, idle transactions and dead connections itself,
also when the process at our end is frozen; and a watching thread shuts the socket down when the server exceeds ours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg_errors
from psycopg import pq, sql

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import JournalCorrupt, JournalError, JournalUnavailable

CONNECT_TIMEOUT_S = 3
_LOOK_EVERY_S = 0.1
_OTHER_TABLES = "42"
"""The class of errors of statements that don't suit the tables there are: these are not ours."""

Row = tuple[Any, ...]
Query = sql.SQL | sql.Composed


class Link:
    """A connection in autocommit: each statement is a transaction of its own. One thread at a time.

    `timeout_s` bounds each statement, at the server and here; `name` is what the server's list of sessions shows.
    """

    def __init__(self, conninfo: str, *, name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = 0.0
        self._closed = threading.Event()
        with translated():
            self._connection = psycopg.connect(
                conninfo, autocommit=True, application_name=name, **_client_limits(timeout_s)
            )
        try:
            self._limit_server()
        except BaseException:
            self._connection.close()
            raise
        self._connection.prepare_threshold = 1
        threading.Thread(target=self._watch, name=f"{name}: time-outs", daemon=True).start()

    def execute(self, statement: Query, values: Sequence[object] = (), *, binary: bool = True) -> list[Row]:
        """Run one statement; its rows, if it has any. Raises JournalUnavailable."""
        with translated(), self._watched():
            cursor = self._connection.execute(statement, values, binary=binary)
            return cursor.fetchall() if cursor.description is not None else []

    def change(self, statement: Query, values: Sequence[object] = ()) -> int:
        """Run one statement; how many rows it touched. Raises JournalUnavailable."""
        with translated(), self._watched():
            return self._connection.execute(statement, values, binary=True).rowcount

    def prepare(self, name: bytes, statement: bytes) -> None:
        """Have the server parse a statement, in which `$1` and so on stand for values. Raises JournalUnavailable."""
        with translated(), self._watched():
            _checked(self._connection.pgconn.prepare(name, statement))

    def change_prepared(self, name: bytes, *values: int | str | bytes) -> int:
        """Run what was prepared by a single call into libpq; how many rows it touched. Raises JournalUnavailable.

        For what runs hundreds of times a second beside a busy event loop: `change` sends, waits and fetches in several
        calls, and after each of them its thread waits for the interpreter again.
        """
        given = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        formats = [pq.Format.BINARY if isinstance(value, bytes) else pq.Format.TEXT for value in values]
        with translated(), self._watched():
            return _checked(self._connection.pgconn.exec_prepared(name, given, formats)).command_tuples or 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Statements within become durable together. Keep it short: its locks are held meanwhile."""
        with translated(), self._watched(), self._connection.transaction():
            yield

    def rows(self, statement: Query, values: Sequence[object] = ()) -> Generator[Row, None, None]:
        """Many rows, fetched in portions, all as of one moment. Each portion has `timeout_s`."""
        with translated(), self._connection.transaction(), self._connection.cursor("rows", binary=True) as cursor:
            cursor.itersize = 500
            with self._watched():
                cursor.execute(statement, values)
            while True:
                with self._watched():
                    portion = cursor.fetchmany(cursor.itersize)
                if not portion:
                    return
                yield from portion

    def close(self) -> None:
        """Give the connection back. Harmless when it is gone already."""
        self._closed.set()
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _limit_server(self) -> None:
        milliseconds = int(self._timeout_s * 1000)
        limits = {
            "statement_timeout": milliseconds,
            "lock_timeout": milliseconds,
            "idle_in_transaction_session_timeout": milliseconds,
            "tcp_user_timeout": milliseconds,
            "tcp_keepalives_idle": 1,
            "tcp_keepalives_interval": 1,
            "tcp_keepalives_count": 3,
            "synchronous_commit": "on",
        }
        for name, value in limits.items():
            with contextlib.suppress(pg_errors.FeatureNotSupported), translated(), self._watched():
                self._connection.execute("SELECT set_config(%s, %s, false)", (name, str(value)))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        outer, self._until = self._until, self._until or time.monotonic() + self._timeout_s * 1.5
        try:
            yield
        finally:
            self._until = outer

    def _watch(self) -> None:
        """Attributes are written and polled, not signalled: a statement must not cost two thread switches."""
        while not self._closed.wait(_LOOK_EVERY_S):
            until = self._until
            if until and time.monotonic() > until:
                self._cut()
                return

    def _cut(self) -> None:
        # Whoever waits for this socket gets an end of file; the descriptor stays psycopg's to close.
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as s:
            s.shutdown(socket.SHUT_RDWR)


def _checked(result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise pg_errors.error_from_result(result)
    return result


def _client_limits(timeout_s: float) -> dict[str, Any]:
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "client_encoding": "UTF8",  # also where the database has none
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": int(timeout_s * 1000),
    }


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns PostgreSQL's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise as_ours(error) from error


def as_ours(error: psycopg.Error) -> JournalError | ConfigError:
    """What to tell people. A connection that can't be described is theirs to correct; most else may be over soon."""
    said = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return ConfigError(
            f"the PostgreSQL connection string can't be read: {said}",
            hint="give --journal 'postgres:host=… dbname=… user=…'; the password comes from PGPASSWORD or ~/.pgpass",
        )
    if isinstance(error, pg_errors.DiskFull):
        return JournalUnavailable("the disk of PostgreSQL is full", hint="make room on it")
    if isinstance(error, pg_errors.InsufficientPrivilege):
        return JournalUnavailable(
            f"PostgreSQL refuses: {said}", hint="the role needs CREATE on the database, or to own the schema aliquot"
        )
    if isinstance(error, pg_errors.ReadOnlySqlTransaction):
        return JournalUnavailable(
            "this PostgreSQL is a read-only standby",
            hint="name all servers and add target_session_attrs=read-write to the connection string",
        )
    if (error.sqlstate or "").startswith(_OTHER_TABLES):
        return JournalCorrupt(
            f"this database holds no journal of a coordinator: {said}",
            hint="name that of --journal; a new journal goes into a database that nothing else uses",
        )
    return JournalUnavailable(
        f"PostgreSQL: {said}",
        hint="see that it runs, answers from here, and has the database and the user of the connection string; the "
        "password comes from PGPASSWORD or ~/.pgpass",
    )

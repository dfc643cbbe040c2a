"""Leadership among several coordinators: one row in PostgreSQL that expires on the database's clock.

Whoever finds the row expired takes it by a compare-and-set of its leader epoch, and renews it over a connection of its
own.

A killed leader is replaced sooner than by expiry: its session at the server ends with it. That alone would not do, and
neither would an advisory lock, which stays with the session: a frozen or cut-off holder's session lives as long as TCP
takes to notice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from psycopg import sql

from aliquot.coordinator.errors import JournalError
from aliquot.coordinator.writing.journal.pglink import Link, Row
from aliquot.coordinator.writing.journal.pgschema import NO_LEADER
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from aliquot.coordinator.writing.leadership.expiring import DEFAULT_EXPIRY_MS, ExpiringLeadership, Seat

T = TypeVar("T")

# A database whose clock was set back would keep a dead leader in place for as long: an absurd expiry is none.
_FREE = "(expires_at < clock_timestamp() OR expires_at > clock_timestamp() + %s::bigint * interval '1 ms')"
_LOOK = sql.SQL(
    "SELECT leader_epoch, address, session, "  # noqa: S608 - only our own constant
    + _FREE
    + ","
    " EXISTS (SELECT FROM pg_stat_activity WHERE pid = session AND datname = current_database()) FROM aliquot.leader"
)
_TAKE = sql.SQL(
    "UPDATE aliquot.leader"  # noqa: S608
    " SET leader_epoch = greatest(leader_epoch, (SELECT leader_epoch FROM aliquot.fence)) + 1,"
    " holder = %s, address = %s, session = pg_backend_pid(),"
    " expires_at = clock_timestamp() + %s::bigint * interval '1 ms'"
    " WHERE leader_epoch = %s AND (session = %s OR " + _FREE + ") RETURNING leader_epoch"
)
_RENEW = sql.SQL(
    "UPDATE aliquot.leader SET expires_at = clock_timestamp() + %s::bigint * interval '1 ms',"
    " session = pg_backend_pid() WHERE leader_epoch = %s AND holder = %s"
)
_GIVE_UP = sql.SQL("UPDATE aliquot.leader SET expires_at = '-infinity' WHERE leader_epoch = %s AND holder = %s")
_NO_SESSION = -1


class PostgresLeadership(ExpiringLeadership):
    """See the module's docstring."""

    what = "the leader row"

    def __init__(
        self, journal: PostgresJournal, *, holder: str, address: str = "", expiry_ms: int = DEFAULT_EXPIRY_MS
    ) -> None:
        super().__init__(journal, holder=holder, address=address, expiry_ms=expiry_ms)
        self._absurd_ms = 10 * self._expiry_ms
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._absent_since = (0, 0, 0.0)

    def look(self) -> Seat:
        """Who leads. Raises JournalUnavailable.

        A leader whose session is gone counts as gone after a third of the expiry: a killed process need not be waited
        for, and one that merely connects anew has renewed its row by then.
        """
        while not (rows := self._ask(_LOOK, (self._absurd_ms,))):
            self._ask(NO_LEADER, ())  # somebody has deleted the row; the fence knows the latest epoch
        epoch, address, session, free, present = rows[0]
        now = time.monotonic()
        if present or self._absent_since[:2] != (epoch, session):
            self._absent_since = (epoch, session, now)
        absent = not present and now - self._absent_since[2] >= self._expiry_ms / 3000
        return Seat(epoch, address, free or absent, session, absent)

    def _take(self, seat: Seat) -> int | None:
        session = seat.session if seat.absent else _NO_SESSION
        values = (self._holder, self.address, self._expiry_ms, seat.leader_epoch, session, self._absurd_ms)
        rows = self._ask(_TAKE, values)
        return int(rows[0][0]) if rows else None

    def _renew(self) -> bool:
        values = (self._expiry_ms, self._epoch, self._holder)
        return self._on_link(lambda link: link.change(_RENEW, values)) == 1

    def _give_up(self) -> None:
        self._ask(_GIVE_UP, (self._epoch, self._holder))

    def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, statement: sql.SQL, values: tuple[object, ...]) -> list[Row]:
        return self._on_link(lambda link: link.execute(statement, values))

    def _on_link(self, call: Callable[[Link], T]) -> T:
        """Over the connection of the leader row, made again after a failure; the renewing thread takes its turns."""
        with self._lock:
            if self._link is None:
                timeout_s = self._expiry_ms / 1000 / 3
                self._link = Link(self._journal.conninfo, name="aliquot leader row", timeout_s=timeout_s)
            try:
                return call(self._link)
            except JournalError:
                self._close()
                raise

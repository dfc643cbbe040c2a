"""Leadership among several coordinators: one row in PostgreSQL that expires on the database's clock.

Whoever finds the row expired takes it by a compare-and-set of its leader epoch, and renews it over a connection of its
own: from a thread of its own, so that neither a slow commit nor a busy event loop costs it its place. It counts the
expiry on its own monotonic clock from before it asked: it knows that it no longer leads no later than anybody else may
believe so. A frozen leader learns it when it wakes; until then the journal's fence keeps it from writing.

A killed leader is replaced sooner than by expiry: its session at the server ends with it. That alone would not do, and
neither would an advisory lock, which stays with the session: a frozen or cut-off holder's session lives as long as TCP
takes to notice.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from psycopg import sql

from aliquot.common.clock import wall_ms
from aliquot.common.limits import ADDRESSES_MAX
from aliquot.coordinator.errors import JournalError, JournalLocked, NotLeader
from aliquot.coordinator.writing.journal.pglink import Link, Row
from aliquot.coordinator.writing.journal.pgschema import NO_LEADER
from aliquot.coordinator.writing.journal.postgres import PostgresJournal

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_EXPIRY_MS = 3_000
_RENEWALS_PER_EXPIRY = 6
WHAT = "the leader row"
"""What is renewed, for people."""

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


@dataclass(frozen=True, slots=True)
class Seat:
    """The leader's place as it was just looked at."""

    leader_epoch: int
    address: str
    free: bool
    """Nobody leads: take it."""
    session: int = 0
    """The leader's session at the database, whose end says that its process or its way to the server is gone."""
    absent: bool = False
    """That session is no longer there."""


class PostgresLeadership:
    """See the module's docstring. It implements `Leadership`; a standby uses `look` and `take` instead of `acquire`.

    `addresses` are where launchers and agents reach this coordinator; `holder` names it among its kind. Calls block,
    and all but `lost`, `why_lost` and `meet` belong to one thread at a time.
    """

    def __init__(
        self, journal: PostgresJournal, *, holder: str, address: str = "", expiry_ms: int = DEFAULT_EXPIRY_MS
    ) -> None:
        self.addresses: Sequence[str] = (address,)
        self.everybody: tuple[str, ...] = ()
        """Where all coordinators are reached, as of the last `meet`. Read on any thread."""
        self.clock_ahead_ms = 0
        """How far this machine's clock is ahead of the database's, as of then."""
        self.skew_max_ms = 0
        """No further than this, or it does not lead; 0: however far."""
        self.journal = journal
        """What is led."""
        self._holder = holder
        self.expiry_ms = int(expiry_ms)
        """How long after its last renewal the seat is free."""
        self._epoch = 0
        self._deadline = 0.0
        self._why_lost = ""
        self._stop = threading.Event()
        self._renewing: threading.Thread | None = None
        self._absurd_ms = 10 * self.expiry_ms
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._absent_since = (0, 0, 0.0)

    # -- for both

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
        absent = not present and now - self._absent_since[2] >= self.expiry_ms / 3000
        return Seat(epoch, address, free or absent, session, absent)

    @property
    def address(self) -> str:
        """By which standbys name this coordinator when it leads."""
        return self.addresses[0]

    def meet(self) -> None:
        """Say where this coordinator is reached, learn where all are, and compare clocks. Raises JournalUnavailable."""
        self.everybody = self.journal.meet(self.addresses, ADDRESSES_MAX)
        self.clock_ahead_ms = self.journal.clock_ahead_ms(wall_ms)

    # -- for a standby

    def take(self, seat: Seat) -> int | None:
        """Take a free seat and keep it from now on; returns the leader epoch, or None when another was faster. Raises
        NotLeader where this machine's clock, which would be the pool's, is too far from the database's.
        """
        self.meet()
        self.compare()
        asked = time.monotonic()
        epoch = self._take(seat)
        if epoch is None:
            return None
        self._epoch, self._why_lost = epoch, ""
        self._deadline = asked + self.expiry_ms / 1000
        self._stop = threading.Event()
        self._renewing = threading.Thread(target=self._keep, args=(self._stop,), name=WHAT, daemon=True)
        self._renewing.start()
        return self._epoch

    # -- for the leader

    def compare(self, now_ms: Callable[[], int] = wall_ms) -> None:
        """Raises NotLeader where this clock, by which it would lead, is too far from the database's."""
        ahead_ms = self.journal.clock_ahead_ms(now_ms)
        if 0 < self.skew_max_ms < abs(ahead_ms):
            apart = f"{abs(ahead_ms) // 1000} s {'ahead of' if ahead_ms > 0 else 'behind'}"
            raise NotLeader(
                f"this coordinator does not lead, as its clock is {apart} the database's",
                hint="set the one right that is wrong; `clock_skew_max` is how far apart they may be",
            )

    @property
    def lost(self) -> bool:
        """Whether the seat is, or may be, another's by now."""
        return bool(self._why_lost) or time.monotonic() >= self._deadline

    @property
    def why_lost(self) -> str:
        """For people."""
        return self._why_lost or f"{WHAT} could not be renewed for {self.expiry_ms} ms"

    def acquire(self) -> int:
        """Open the journal and take the seat, which must be free. Raises JournalLocked, NotLeader or JournalError."""
        self.journal.open()
        seat = self.look()
        epoch = self.take(seat) if seat.free else None
        if epoch is None:
            raise JournalLocked(
                f"the coordinator at {seat.address or '?'} leads", hint="start this one as a standby, or stop that one"
            )
        self.journal.fence(epoch)
        return epoch

    def stop_renewing(self) -> None:
        """Let go of the seat, so that the next leader need not wait for its expiry."""
        self._stop.set()
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.join()
            if not self.lost:
                with contextlib.suppress(JournalError):
                    self._give_up()
        self._deadline = 0.0

    def release(self) -> None:
        """Let somebody else lead, and close everything."""
        self.stop_renewing()
        self.journal.close()
        self._close()

    def _keep(self, stop: threading.Event) -> None:
        pause_s = self.expiry_ms / 1000 / _RENEWALS_PER_EXPIRY
        while not stop.wait(pause_s):
            asked = time.monotonic()
            try:
                renewed = self._renew()
            except JournalError as error:
                if self.lost:
                    self._why_lost = f"{self.why_lost}: {error}"
                    return
                log.warning("%s was not renewed, and is tried again: %s", WHAT, error)
                continue
            if not renewed:
                self._why_lost = f"another coordinator has taken {WHAT}"
                return
            self._deadline = asked + self.expiry_ms / 1000

    # -- the row

    def _take(self, seat: Seat) -> int | None:
        """Compare and set; the new leader epoch, or None when another was faster. Raises JournalUnavailable."""
        session = seat.session if seat.absent else _NO_SESSION
        values = (self._holder, self.address, self.expiry_ms, seat.leader_epoch, session, self._absurd_ms)
        rows = self._ask(_TAKE, values)
        return int(rows[0][0]) if rows else None

    def _renew(self) -> bool:
        """Renew once; False when another leads. Raises JournalError when it can't be known."""
        values = (self.expiry_ms, self._epoch, self._holder)
        return self._on_link(lambda link: link.change(_RENEW, values)) == 1

    def _give_up(self) -> None:
        """Let it be free at once. Raises JournalError."""
        self._ask(_GIVE_UP, (self._epoch, self._holder))

    def _close(self) -> None:
        """Drop the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, statement: sql.SQL, values: tuple[object, ...]) -> list[Row]:
        return self._on_link(lambda link: link.execute(statement, values))

    def _on_link(self, call: Callable[[Link], T]) -> T:
        """Over the connection of the leader row, made again after a failure; the renewing thread takes its turns."""
        with self._lock:
            if self._link is None:
                timeout_s = self.expiry_ms / 1000 / 3
                self._link = Link(self.journal.conninfo, name="aliquot leader row", timeout_s=timeout_s)
            try:
                return call(self._link)
            except JournalError:
                self._close()
                raise

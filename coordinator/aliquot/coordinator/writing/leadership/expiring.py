"""Leadership that has to be renewed, whatever keeps it, such as a row of a database.

The leader renews it from a thread of its own, so that neither a slow commit nor a busy event loop costs it its place,
and counts the expiry on its own monotonic clock from before it asked: it knows that it no longer leads no later than
anybody else may believe so. A frozen leader learns it when it wakes; until then the journal's fence keeps it from
writing.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.common.connection_string import ADDRESSES_MAX
from aliquot.coordinator.errors import JournalError, JournalLocked, NotLeader
from aliquot.coordinator.writing.journal.postgres import PostgresJournal

log = logging.getLogger(__name__)

DEFAULT_EXPIRY_MS = 3_000
_RENEWALS_PER_EXPIRY = 6


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


class ExpiringLeadership(abc.ABC):
    """See the module's docstring. It implements `Leadership`; a standby uses `look` and `take` instead of `acquire`.

    `addresses` are where launchers and agents reach this coordinator; `holder` names it among its kind. Calls block,
    and all but `lost`, `why_lost` and `meet` belong to one thread at a time.
    """

    what = "the leader's place"
    """What is renewed, for people."""

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
        self._journal = journal
        self._holder = holder
        self._expiry_ms = int(expiry_ms)
        self._epoch = 0
        self._deadline = 0.0
        self._why_lost = ""
        self._stop = threading.Event()
        self._renewing: threading.Thread | None = None

    # -- what keeps it

    @abc.abstractmethod
    def look(self) -> Seat:
        """Who leads. Raises JournalUnavailable."""

    @abc.abstractmethod
    def _take(self, seat: Seat) -> int | None:
        """Compare and set; the new leader epoch, or None when another was faster. Raises JournalUnavailable."""

    @abc.abstractmethod
    def _renew(self) -> bool:
        """Renew once; False when another leads. Raises JournalError when it can't be known."""

    @abc.abstractmethod
    def _give_up(self) -> None:
        """Let it be free at once. Raises JournalError."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Drop connections."""

    # -- for both

    @property
    def address(self) -> str:
        """By which standbys name this coordinator when it leads."""
        return self.addresses[0]

    def meet(self) -> None:
        """Say where this coordinator is reached, learn where all are, and compare clocks. Raises JournalUnavailable."""
        self.everybody = self._journal.meet(self.addresses, ADDRESSES_MAX)
        self.clock_ahead_ms = self._journal.clock_ahead_ms()

    # -- for a standby

    def take(self, seat: Seat) -> int | None:
        """Take a free seat and keep it from now on; returns the leader epoch, or None when another was faster. Raises
        NotLeader where this machine's clock, which would be the pool's, is too far from the database's.
        """
        self.meet()
        if 0 < self.skew_max_ms < abs(self.clock_ahead_ms):
            apart = f"{abs(self.clock_ahead_ms) // 1000} s {'ahead of' if self.clock_ahead_ms > 0 else 'behind'}"
            raise NotLeader(
                f"this coordinator does not lead, as its clock is {apart} the database's",
                hint="set the one right that is wrong; `clock_skew_max` is how far apart they may be",
            )
        asked = time.monotonic()
        epoch = self._take(seat)
        if epoch is None:
            return None
        self._epoch, self._why_lost = epoch, ""
        self._deadline = asked + self._expiry_ms / 1000
        self._stop = threading.Event()
        self._renewing = threading.Thread(target=self._keep, args=(self._stop,), name=self.what, daemon=True)
        self._renewing.start()
        return self._epoch

    # -- for the leader

    @property
    def journal(self) -> PostgresJournal:
        """What is led."""
        return self._journal

    @property
    def expiry_ms(self) -> int:
        """How long after its last renewal the seat is free."""
        return self._expiry_ms

    @property
    def lost(self) -> bool:
        """Whether the seat is, or may be, another's by now."""
        return bool(self._why_lost) or time.monotonic() >= self._deadline

    @property
    def why_lost(self) -> str:
        """For people."""
        return self._why_lost or f"{self.what} could not be renewed for {self._expiry_ms} ms"

    def acquire(self) -> int:
        """Open the journal and take the seat, which must be free. Raises JournalLocked, NotLeader or JournalError."""
        self._journal.open()
        seat = self.look()
        epoch = self.take(seat) if seat.free else None
        if epoch is None:
            raise JournalLocked(
                f"the coordinator at {seat.address or '?'} leads", hint="start this one as a standby, or stop that one"
            )
        self._journal.fence(epoch)
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
        self._journal.close()
        self._close()

    def _keep(self, stop: threading.Event) -> None:
        pause_s = self._expiry_ms / 1000 / _RENEWALS_PER_EXPIRY
        while not stop.wait(pause_s):
            asked = time.monotonic()
            try:
                renewed = self._renew()
            except JournalError as error:
                if self.lost:
                    self._why_lost = f"{self.why_lost}: {error}"
                    return
                log.warning("%s was not renewed, and is tried again: %s", self.what, error)
                continue
            if not renewed:
                self._why_lost = f"another coordinator has taken {self.what}"
                return
            self._deadline = asked + self._expiry_ms / 1000

"""A coordinator that does not lead: it follows the journal, and takes over when the leader's seat is free.

It runs in a thread of its own, with its own connections, and touches nothing of the event loop. The State that it keeps
up to date is its own until it is handed over with the leadership.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import JournalCorrupt, JournalError, JournalUnavailable, NotLeader, ShuttingDown
from aliquot.coordinator.writing.journal.replay import Replay

if TYPE_CHECKING:  # psycopg is an extra
    from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership, Seat

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Between two looks at the journal and the seat: a small query each."""
_RETRY_S = 0.5
_MEET_EVERY_S = 60
"""Coordinators that have not been seen for a week are forgotten."""


@dataclass(frozen=True, slots=True)
class Led:
    """The seat is ours: the fence is up, and the State is all that was ever committed."""

    leader_epoch: int
    state: State


class Standby:
    """See the module's docstring. `tell` hears, from the thread, who leads (an address, or nothing), of how many
    nodes, and why nobody leads, where that is known.
    """

    def __init__(
        self,
        leadership: PostgresLeadership,
        tell: Callable[[str, int, AliquotError | None], None],
    ) -> None:
        self._journal = journal = leadership.journal
        self._leadership = leadership
        self._replay = Replay(journal)
        self._tell = tell
        self._stop = threading.Event()
        self._warm = False
        self._meet_at = 0.0
        self.generations = self._replay.state.enrolment.generations
        """Of the pool's authority, as of the facts that it has followed. Read on any thread."""

    @property
    def seq(self) -> int:
        """The number of the last fact it has followed."""
        return self._replay.state.seq

    def stop(self) -> None:
        """Make `wait` return."""
        self._stop.set()

    def prepare(self) -> None:
        """Make the tables where there are none, and read all there is, once the database answers. Raises JournalError
        or ConfigError; ShuttingDown after `stop`.
        """
        while not self._stop.is_set():
            try:
                self._journal.prepare()
                self._follow()
            except JournalUnavailable as error:
                log.warning("starting goes on when the database answers: %s", error)
                self._stop.wait(_RETRY_S)
            else:
                return
        raise ShuttingDown("stopped before its database could be reached")

    def wait(self) -> Led | None:
        """Follow until we lead; None after `stop`. Raises JournalTooNew and JournalCorrupt: waiting heals neither."""
        while not self._stop.is_set():
            led = self.step()
            if led is not None:
                return led
            self._stop.wait(POLL_S)
        return None

    def step(self) -> Led | None:
        """Apply new facts, and take the seat if it is free. What can't be reached is tried again later."""
        try:
            return self._step()
        except (JournalUnavailable, NotLeader) as error:
            log.warning("following goes on in a moment: %s", error)
            # Whoever led can't either: what was known of it sends callers astray.
            away = (
                JournalUnavailable(error.message, hint="it is retried by itself")
                if isinstance(error, JournalError)
                else error
            )
            self._tell("", len(self._replay.state.nodes), away)
            self._stop.wait(_RETRY_S)
            return None

    def _step(self) -> Led | None:
        seat = self._leadership.look()
        if (now := time.monotonic()) >= self._meet_at:
            self._leadership.meet()
            self._meet_at = now + _MEET_EVERY_S
        self._tell("" if seat.free else seat.address, len(self._replay.state.nodes), None)
        self._follow()
        return self._take(seat) if seat.free else None

    def _take(self, seat: Seat) -> Led | None:
        epoch = self._leadership.take(seat)
        if epoch is None:
            return None
        try:
            self._journal.open()
            self._journal.fence(epoch)
            self._follow()  # nothing of an older leader can come any more
        except BaseException:
            self._leadership.stop_renewing()
            with contextlib.suppress(JournalError):
                self._journal.close()
            raise
        state = self._replay.state
        self._journal.resume_after(state.seq, self._replay.digest)
        log.info("leading with epoch %d from fact %d on: %d leases", epoch, state.seq, len(state.leases))
        return Led(epoch, state)

    def _follow(self) -> None:
        if not self._warm:
            self._replay.restart()
        try:
            self._warm = False  # an error between two facts leaves a State that is none
            self._replay.catch_up()
        except JournalCorrupt:
            # What it had not read yet may have been pruned: the newest snapshot holds it. Else it is true.
            self._replay.restart()
            self._replay.catch_up()
        self.generations = self._replay.state.enrolment.generations
        self._warm = True

"""Sends notices: each rule by a thread of its own, so that one that is down holds up nobody; again until it works.

Bounded: what can't be told for `GIVEN_UP_S`, or waits behind too much, is given up and said so. It may be found again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.cli.notify.notices import Notice
from aliquot.client import PoolError

log = logging.getLogger(__name__)

WAITING_MAX = 1_000
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 600.0
GIVEN_UP_S = 6 * 3600.0
Deliver = Callable[[Notice], None]
"""Raises `OSError` where it could not, and `PoolError` where the pool can't be asked for what is to be told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a notice."""

    notice: Notice
    delivered: bool


class Sender:
    """One rule's."""

    def __init__(
        self, deliver: Deliver, done: Callable[[Outcome], None], *, first_retry_s: float = FIRST_RETRY_S
    ) -> None:
        """`done` is called in the sender's thread."""
        self._deliver = deliver
        self._done = done
        self._first_retry_s = first_retry_s
        self._waiting: queue.Queue[Notice | None] = queue.Queue(WAITING_MAX)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def send(self, notice: Notice) -> bool:
        """Have it told; False: too many wait."""
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Tell what can be told at once, and end."""
        self._closed.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            log.warning("%d notices are given up", self._waiting.qsize())
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (notice := self._waiting.get()) is not None:
            self._done(Outcome(notice, self._try(notice)))

    def _try(self, notice: Notice) -> bool:
        wait_s, until_s = self._first_retry_s, time.monotonic() + GIVEN_UP_S
        while True:
            try:
                self._deliver(notice)
            except (OSError, PoolError) as error:
                log.warning("%s could not be told to %s: %s", notice.title, notice.rule.name, error)
            else:
                return True
            if time.monotonic() + wait_s > until_s or self._closed.wait(wait_s):
                return False
            wait_s = min(2 * wait_s, LAST_RETRY_S)

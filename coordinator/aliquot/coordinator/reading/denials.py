"""Calls that were refused for who made them: the last ones in memory, all of them counted, few of them logged.

Nothing of it is journalled, because strangers must not be able to write there.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.common.names import plain_text

log = logging.getLogger(__name__)

KEPT = 1_000
_LOGGED_EVERY_MS = 10_000


@dataclass(slots=True)
class Denial:
    """One refusal, or several like it in a row."""

    at_ms: int
    principal: str
    peer: str
    method: str
    reason: str
    message: str
    times: int = 1


USUAL = ("TOKEN_MISSING", "TOKEN_UNKNOWN", "TOKEN_EXPIRED", "TOKEN_REVOKED", "NOT_PERMITTED")


class Denials:
    """The last of them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` reads the clock."""
        self._now_ms = now_ms
        self.latest: deque[Denial] = deque(maxlen=KEPT)
        self.by_reason: Counter[str] = Counter(dict.fromkeys(USUAL, 0))
        """Since the start; the usual ones from 0 on, because a rise from nothing is not seen as one."""
        self._logged_ms = -_LOGGED_EVERY_MS
        self._unlogged = 0

    def note(self, principal: str, peer: str, method: str, reason: str, message: str) -> None:
        """A call was refused."""
        now_ms = self._now_ms()
        self.by_reason[reason] += 1
        peer = plain_text(peer, 64)
        last = self.latest[-1] if self.latest else None
        if last is not None and (last.principal, last.method, last.reason, _host(last.peer)) == (
            principal,
            method,
            reason,
            _host(peer),
        ):
            last.at_ms, last.message, last.peer = now_ms, message, peer
            last.times += 1
        else:
            self.latest.append(Denial(now_ms, principal, peer, method, reason, message))
        if now_ms - self._logged_ms < _LOGGED_EVERY_MS:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} others since the last such line)" if self._unlogged else ""
        log.warning("refused %s from %s: %s%s", method, peer, message, more)
        self._logged_ms, self._unlogged = now_ms, 0


def _host(peer: str) -> str:
    """A peer without its port."""
    return peer.rpartition(":")[0]

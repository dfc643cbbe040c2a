"""One-time codes, by which somebody at a terminal lets a browser in: what the browser is given opens nothing twice.

They are kept by this process alone, for minutes: after a restart `aliquot console` makes another.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from aliquot.client import Overloaded

CODES_MAX = 4_096
CODES_EACH = 8
"""Of a principal: the oldest of its own is forgotten, and nobody else's."""
CODE_S = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str = field(repr=False)
    principal: str
    until_s: float


class Codes:
    """Tokens by code, each good for the principal whose it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def make(self, token: str, principal: str) -> str:
        """A code for a token, good once and for `CODE_S` seconds. Raises Overloaded."""
        now_s = self._clock()
        while self._kept and next(iter(self._kept.values())).until_s <= now_s:
            self._kept.popitem(last=False)
        own = [code for code, kept in self._kept.items() if kept.principal == principal]
        for code in own[: max(0, len(own) + 1 - CODES_EACH)]:
            del self._kept[code]
        if len(self._kept) >= CODES_MAX:
            raise Overloaded(f"{CODES_MAX} codes wait to be used, which is the bound", retry_after_s=60.0)
        code = secrets.token_urlsafe(24)
        self._kept[code] = _Kept(token, principal, now_s + CODE_S)
        return code

    def take(self, code: str, principal: str) -> str:
        """The token of a code, which counts no more; empty: it doesn't count, or is not of this principal."""
        kept = self._kept.pop(code, None)
        good = kept is not None and kept.until_s > self._clock() and kept.principal == principal
        return kept.token if kept is not None and good else ""

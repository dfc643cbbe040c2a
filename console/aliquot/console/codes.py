"""One-time codes, by which somebody at a terminal lets a browser in: what the browser is given opens nothing twice.

They are kept by this process alone, for minutes: after a restart `aliquot console` makes another.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

CODES_MAX = 256
CODE_S = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str = field(repr=False)
    until_s: float


class Codes:
    """Tokens by code. Beyond `CODES_MAX` the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def make(self, token: str) -> str:
        """A code for a token, good once and for `CODE_S` seconds."""
        code = secrets.token_urlsafe(24)
        self._kept[code] = _Kept(token, self._clock() + CODE_S)
        while len(self._kept) > CODES_MAX:
            self._kept.popitem(last=False)
        return code

    def take(self, code: str) -> str:
        """The token of a code, which counts no more; empty: it doesn't count."""
        kept = self._kept.pop(code, None)
        return kept.token if kept is not None and kept.until_s > self._clock() else ""

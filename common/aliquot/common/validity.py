"""For how long the certificates count by which a program is known, and whether somebody renews them in time.

Programs know their own; those in files are somebody else's to renew. One that is over is refused by everybody at once,
and a renewed one that can't be used is not shown, so both are said before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from aliquot.common.tls import Following, ServerTls

SERVER: Final = "server"
_EARLY_MS: Final = 14 * 86_400_000
_LEFT: Final = 1 / 4
"""One whose whole life is short is renewed later than `_EARLY_MS` before its end, and before so much of it is left."""


class Lifetime(NamedTuple):
    """In ms since 1970."""

    begins_ms: int
    ends_ms: int

    def ends_s(self) -> float:
        """In seconds."""
        return self.ends_ms / 1000

    def due_s(self) -> float:
        """By when it should have been renewed."""
        return (self.ends_ms - min(_EARLY_MS, int((self.ends_ms - self.begins_ms) * _LEFT))) / 1000


Life = Callable[[], Lifetime]
"""Of what is shown now; all 0: there is none, or it can't be read."""


class Certificates:
    """Of one program. Use from one thread, or from several that only look."""

    def __init__(
        self, now_ms: Callable[[], int], tls: ServerTls | None = None, others: Mapping[str, Life] = {}
    ) -> None:
        """`tls` is what it shows to callers; `others`: what it has beside, by a word for each. Raises `SecurityError`
        for files that can't be used.
        """
        self._now_ms = now_ms
        self._following = None if tls is None else Following(tls)
        self._others = dict(others)
        if self._following is not None:
            self._following.load()

    def lifetimes(self) -> dict[str, Lifetime]:
        """Of each as it is shown now; of one in files only where the package cryptography is there."""
        found = {name: read() for name, read in self._others.items()}
        # Only here: what reads certificates takes a program 9 MB.
        if self._following is not None:
            self._following.renewed()
            with contextlib.suppress(ImportError):
                from aliquot.common.certificates import lifetime_ms  # noqa: PLC0415 - an extra, and large

                found[SERVER] = Lifetime(*lifetime_ms(self._following.shown.chain.decode(errors="replace")))
        return {name: life for name, life in found.items() if life.ends_ms}

    def look(self) -> str:
        """Why one of them is not as it should be; empty: all are."""
        now_s = self._now_ms() / 1000
        problems = []
        for name, life in self.lifetimes().items():
            if now_s >= life.due_s():
                word = "has ended" if now_s >= life.ends_s() else "is to be renewed: it ends"
                ends = dt.datetime.fromtimestamp(life.ends_s(), dt.UTC)
                problems.append(f"the certificate ({name}) {word} {ends:%Y-%m-%d %H:%M} UTC")
        if self._following is not None and self._following.problem:
            problems.append(self._following.problem)
        return "; ".join(problems)

"""How a program ends whose lease was taken back, and which does not care for that: with a word, and a code of its own.

Whoever starts it can tell that from a failure of the program, and start it again.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from aliquot.remote.errors import SessionLeaseEnded

LEASE_LOST = 8
"""The exit code: the command line's own for a lease that ended while it was needed."""

_lost: list[bool] = []


def install() -> None:
    """Do it, once a process. Called early, so that whatever else is to happen at the program's end comes before."""
    atexit.register(_leave, os.getpid())
    before = sys.excepthook

    def hook(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        before(kind, raised, trace)
        if isinstance(raised, SessionLeaseEnded):
            _lost.append(True)
            hint = f" {raised.hint}." if raised.hint else ""
            sys.stderr.write(f"aliquot: the program has ended because {raised.message}.{hint}\n")

    sys.excepthook = hook


def _leave(pid: int) -> None:
    if _lost and os.getpid() == pid:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LEASE_LOST)

"""By which signal a program is told that its lease ends: names, as people and contracts of the field write them.

Numbers differ between machines, so only names travel. A program must be able to catch it: SIGKILL follows anyway, when
the grace is over. Signals that mean something else by habit (SIGCHLD, SIGPIPE, SIGSEGV, …) would be taken for that.
"""

from __future__ import annotations

from typing import Final

from aliquot.common.errors import InvalidFieldError

DEFAULT_STOP_SIGNAL: Final = "TERM"
STOP_SIGNALS: Final = (DEFAULT_STOP_SIGNAL, "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "XCPU", "WINCH")
STOP_VARIABLE: Final = "ALIQUOT_STOP_SIGNAL"
"""In the environment of a program that uses a lease elsewhere: the name of the signal. `aliquot run` states it."""


def validate_stop_signal(value: str, field: str = "stop_signal") -> str:
    """`USR1` of `SIGUSR1` or `usr1`; empty: `TERM`. Raises `InvalidFieldError`."""
    name = value.upper().removeprefix("SIG") or DEFAULT_STOP_SIGNAL
    if name not in STOP_SIGNALS:
        raise InvalidFieldError(
            field,
            f"{value[:64]!r} is no signal that can tell a program to end",
            hint=f"one of {', '.join(STOP_SIGNALS)}; KILL follows by itself when the grace is over",
        )
    return name

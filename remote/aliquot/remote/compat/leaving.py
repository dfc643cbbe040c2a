"""How a program ends whose session has ended, and which does not care for that: with a sentence, and a code of its own.

Whoever starts it can tell that from a failure of the program, and start it again.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from aliquot.remote import errors
from aliquot.remote.torch.session import ATTACHED

_CODES = {errors.SessionLeaseEnded: 8, errors.SessionLost: 6, errors.SessionUnreachable: 6, errors.SessionRefused: 10}
"""Exit codes, the command line's own: the lease ended while it was needed, nobody answers, it is not permitted."""

FAILED = 1
"""The exit code of a program that ended well but for an operator that it had asked for, and did not wait for."""

_codes: list[int] = []
"""Of the program's end, where it is not the program that says."""
_raised: list[bool] = []


def install() -> None:
    """Do it, once a process. Called early, so that whatever else is to happen at the program's end comes before."""
    atexit.register(_leave, os.getpid())
    before = sys.excepthook

    def hook(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        before(kind, raised, trace)
        _raised.append(True)
        if isinstance(raised, errors.RemoteError) and kind in _CODES:
            _codes.append(_CODES[kind])
            hint = f"; {raised.hint}" if raised.hint else ""
            sys.stderr.write(f"aliquot: the program has ended because {raised.message}{hint}\n")

    sys.excepthook = hook


def settle() -> None:
    """Wait for what nobody has waited for: it was the program's work, and so is its failure."""
    if _raised:
        return
    for session in ATTACHED:
        if session is None or session.closed is not None:
            continue
        try:
            session.synchronize()
        except errors.SessionClosed:
            continue  # by the program itself
        except errors.RemoteError as error:
            _codes.append(_CODES.get(type(error), FAILED))
            sys.stderr.write(f"aliquot: what the program asked for last has failed: {error}\n")


def _leave(pid: int) -> None:
    if _codes and os.getpid() == pid:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])

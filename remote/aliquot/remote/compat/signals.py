"""Handlers of signals in programs that know nothing of the lease: they may save a model when they are told to end.

They run in the main thread, whatever it is at; the device's own work is done first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from aliquot.common.errors import InvalidFieldError
from aliquot.common.stopping import STOP_VARIABLE, validate_stop_signal
from aliquot.remote.torch.undisturbed import deferring

_plain_signal = signal.signal
_plain_getsignal = signal.getsignal
_WRAPPED = "__wrapped__"


def stop_signal(environment: Mapping[str, str]) -> signal.Signals:
    """By which this program is told that its lease ends. What nobody can mean is as if nothing was stated."""
    try:
        return signal.Signals[f"SIG{validate_stop_signal(environment.get(STOP_VARIABLE, ''))}"]
    except (InvalidFieldError, KeyError):
        return signal.SIGTERM


def install() -> None:
    """Wrap the handlers that there are, and those to come. Once a process, at best in its main thread."""
    signal.signal = _signal
    signal.getsignal = getsignal
    usual = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    for number in dict.fromkeys((*usual, stop_signal(os.environ))):
        present = _plain_getsignal(number)
        if callable(present):
            try:
                _signal(number, present)
            except ValueError:  # PyTorch is imported in another thread
                return


def _own(handler: Any) -> Any:
    return getattr(handler, _WRAPPED, handler)


def _signal(signalnum: Any, handler: Any) -> Any:
    # Ctrl-C raises at once: a program that hangs must be stoppable.
    wrapped = callable(handler) and handler is not signal.default_int_handler
    return _own(_plain_signal(signalnum, deferring(handler) if wrapped else handler))


def getsignal(signalnum: Any) -> Any:
    """As `signal.getsignal`: the program's own handler."""
    return _own(_plain_getsignal(signalnum))

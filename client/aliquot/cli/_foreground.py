"""Running a program in the foreground as a shell does: it owns the terminal, and signals reach it.

The program has its own process group, because without cgroups the agent follows it by that. So the terminal is given to
that group (otherwise reading from it would stop the program) and taken back when the program stops or ends. Signals
that this process gets are passed on to the program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

# By name, because other systems lack some of them. There the command line can't run programs, but all else works.
FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def end_as_interrupted() -> None:
    """Have SIGTERM, and the end of the terminal, end this command as Ctrl-C does: what it began is given back."""
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        if signal.getsignal(number) is signal.SIG_DFL:  # else it was told to ignore it, as by nohup
            signal.signal(number, signal.default_int_handler)


@dataclass(slots=True)
class Foreground:
    """One program in the foreground. Enter it before the program starts."""

    pid: int = 0
    forwarded: set[int] = field(default_factory=set)
    """Signals that were passed on: an end by one of these was asked for."""
    _terminal: int | None = None
    _waiting: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Pass signals on from now on; those that come before the program starts are kept for it."""
        before = {number: signal.signal(number, self._pass_on) for number in FORWARDED}
        # Ignored, because a background process that takes the terminal back is stopped by it.
        if hasattr(signal, "SIGTTOU"):
            before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._terminal = _own_terminal()
        try:
            yield
        finally:
            self._take_back()
            for number, handler in before.items():
                signal.signal(number, handler)

    def started(self, pid: int) -> None:
        """The program exists but does not run yet: it gets the terminal, and the signals that came meanwhile."""
        self.pid = pid
        self._give()
        for number in self._waiting:
            self._send(number)
        self._waiting.clear()

    def wait(self, process: subprocess.Popen[Any], stopping: Callable[[], None]) -> int:
        """Wait for the program to end, and return its code as `subprocess` does. Calls `stopping` on Ctrl-Z."""
        while True:
            # Without taking the status, which is for Popen to take.
            event = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if event is None or event.si_code not in {os.CLD_STOPPED, os.CLD_TRAPPED}:
                return process.wait()
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG)
            if self._terminal is None:
                # Somebody else stopped it, and will continue it.
                continue
            self._take_back()
            stopping()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._give()
            self._send(signal.SIGCONT)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.pid:
            self._waiting.append(number)
            if number in {signal.SIGINT, signal.SIGTERM}:
                raise KeyboardInterrupt
            return
        self.forwarded.add(number)
        self._send(number)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _give(self) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._terminal, self.pid)

    def _take_back(self) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._terminal, os.getpgrp())


def _own_terminal() -> int | None:
    """The terminal on stdin, if this process is in its foreground."""
    try:
        terminal = sys.stdin.fileno()
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None

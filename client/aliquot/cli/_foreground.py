"""Running one program in the foreground the way a shell does: it owns the terminal, and signals reach it.

The program has a process group of its own, because that is how its lease's agent follows it where there are no cgroups.
So the terminal is handed to that group (or reading from it would stop the program), and taken back whenever the program
stops or ends. Signals that are sent to us go on to the program.
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

# By name, because other systems lack some: there the command line has no programs to run, but all else.
FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


@dataclass(slots=True)
class Foreground:
    """One program in the foreground. Enter it before the program starts."""

    pid: int = 0
    forwarded: set[int] = field(default_factory=set)
    """Signals that we passed on: an end by one of these was asked for."""
    _terminal: int | None = None
    _waiting: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def taking_signals(self) -> Iterator[None]:
        """Pass signals on from here on; those that come before there is a program wait for it."""
        before = {number: signal.signal(number, self._pass_on) for number in FORWARDED}
        # Taking the terminal back would stop us, as we are in the background then.
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
        """This is the program, not yet running: it gets the terminal, and what was sent to us meanwhile."""
        self.pid = pid
        self._give()
        for number in self._waiting:
            self._send(number)
        self._waiting.clear()

    def wait(self, process: subprocess.Popen[Any], stopping: Callable[[], None]) -> int:
        """Until the program ends; its exit code as `subprocess` has it. Stops with it on Ctrl-Z, after `stopping`."""
        while True:
            # Looked at without taking the status, which is Popen's.
            event = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if event is None or event.si_code not in {os.CLD_STOPPED, os.CLD_TRAPPED}:
                return process.wait()
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG)
            if self._terminal is None:
                # Somebody else stopped it, and will have it go on.
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
    """The terminal on stdin, if we are what runs in its foreground."""
    try:
        terminal = sys.stdin.fileno()
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None

"""One child process of a local pool: started with its output in a log, ended in order or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.common.errors import AliquotError

TAIL_BYTES = 4000
STOP_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.02


class ChildFailed(AliquotError):
    """A part of the pool did not start, or ended by itself; the message ends with its last output."""


@dataclass(slots=True)
class Child:
    """A program that is started, perhaps killed, and started again."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    _offset: int = field(default=0, repr=False)

    def start(self) -> None:
        """Start it. Its output goes to the end of the log."""
        with self.log.open("ab") as log:
            self._offset = log.tell()
            # A session of its own: Ctrl-C in the terminal reaches only this process, which ends the parts in order.
            self.process = subprocess.Popen(  # noqa: S603 - our own programs
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.env),
                start_new_session=True,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """The pid of the process that runs, or of the last one."""
        return self.process.pid if self.process is not None else 0

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self.process is not None and self.process.poll() is None

    def output(self) -> str:
        """The output since it was started."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._offset)
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def ready_line(self) -> dict[str, Any] | None:
        """The document of the line `ready {…}`, once it was printed."""
        for line in self.output().splitlines():
            if line.startswith("ready {"):
                document: dict[str, Any] = json.loads(line.removeprefix("ready "))
                return document
        return None

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait until it is ready, and return what it said. Raises `ChildFailed`."""
        self.wait_for(lambda: self.ready_line() is not None, timeout_s, "it was ready")
        return self.ready_line() or {}

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `condition`. Raises `ChildFailed` if the process ends before, or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.running:
                raise self.failure(f"{self.name} ended with code {self._code()} before {what}")
            if time.monotonic() > deadline:
                raise self.failure(f"{self.name}: no sign that {what} within {timeout_s:g} s")
            time.sleep(_LOOK_AGAIN_S)

    def failure(self, message: str) -> ChildFailed:
        """An error with its last output."""
        words = self.output()[-TAIL_BYTES:].strip()
        return ChildFailed(f"{message}; it said:\n{words}" if words else message, hint=f"its log is {self.log}")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, and SIGKILL when it doesn't end."""
        if self.process is None or not self.running:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        if self.process is not None and self.running:
            self.process.kill()
            self.process.wait()

    def _code(self) -> str:
        code = self.process.returncode if self.process is not None else None
        if code is None:
            return "?"
        return signal.Signals(-code).name if code < 0 else str(code)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without the ALIQUOT_ settings, which are meant for clients."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("ALIQUOT_")}
    return env | dict(extra)

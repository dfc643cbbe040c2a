"""What a test starts ends with it: a process that outlives a process of tests, and then ends what that has left.

    python tests/keeper.py MARK < a pipe that the tests' process holds open

A test process may be killed at any moment, with the agents, coordinators and programs that its tests have started.
They are all its descendants, so each has the mark in its environment, whichever of them started it. When the pipe
closes, because the tests are over or their process was killed, the keeper ends whoever has the mark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "_STARTED_BY_TESTS_OF"
"""The mark's name: not one of our settings, which programs keep from their children. Its value names the process of
tests, with the moment when that began: pids come again.
"""

_ROUNDS = 20
"""Somebody may start another process while we look: so we look until nobody is left."""


def mark() -> str:
    """A mark for this process."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return f"{os.getpid()}-{began}"


def watch() -> subprocess.Popen[bytes]:
    """Mark all that this process starts from now on, and start a keeper: closing its `stdin` is the end."""
    keeper_environment = dict(os.environ)
    keeper_environment.pop(VARIABLE, None)
    os.environ[VARIABLE] = mark()
    # In a session of its own: whoever kills the tests' process group does not kill the keeper.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, os.environ[VARIABLE]],
        stdin=subprocess.PIPE,
        env=keeper_environment,
        start_new_session=True,
    )


def marked(value: str) -> list[int]:
    """The processes with this mark."""
    needle = f"{VARIABLE}={value}".encode()
    found = []
    for path in Path("/proc").iterdir():
        # Gone meanwhile, or somebody else's.
        with contextlib.suppress(OSError):
            if path.name.isdecimal() and needle in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def main() -> None:
    """Wait for the end of the pipe, then end the marked."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        left = marked(sys.argv[1])
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

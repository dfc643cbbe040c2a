"""An agent that kills itself with SIGKILL at a point named by `TEST_CRASH_AT`, once: for tests of what
survives.

`persisted`: right after reservations were made durable, before their limits are set. `limit-set`: right after
a limit was set, before it is told of. `persist-N`: at the N-th step of writing files. `full`: no crash, but
every write of a reservation fails for want of space.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

from aliquot.agent import limits_setter
from aliquot.agent.disk import checkpoint, files
from aliquot.agent.main import main


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash_when_persisted() -> None:
    async def set_limit(*arguments: Any) -> None:
        _die()

    limits_setter.LimitSetter.set = set_limit  # type: ignore[method-assign,assignment]


def _crash_when_limit_is_set() -> None:
    real = limits_setter.LimitSetter.set

    async def set_limit(*arguments: Any) -> Any:
        await real(*arguments)
        _die()

    limits_setter.LimitSetter.set = set_limit  # type: ignore[method-assign,assignment]


def _full_disk() -> None:
    def save(self: checkpoint.Checkpoint, records: Any) -> None:
        if list(records):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))

    checkpoint.Checkpoint.save = save  # type: ignore[method-assign]


def _crash_at_step(number: int) -> None:
    """Dies at the n-th of the calls that change files durably."""
    left = [number]

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                _die()
            return function(*arguments, **keywords)

        return call

    files.os.fsync = counted(os.fsync)  # type: ignore[attr-defined]
    files.os.open = counted(os.open)  # type: ignore[attr-defined]
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]


def arm(point: str) -> None:
    """Install the fault."""
    if point == "persisted":
        _crash_when_persisted()
    elif point == "limit-set":
        _crash_when_limit_is_set()
    elif point == "full":
        _full_disk()
    elif point.startswith("persist-"):
        _crash_at_step(int(point.removeprefix("persist-")))


if __name__ == "__main__":
    arm(os.environ["TEST_CRASH_AT"])
    sys.exit(main(sys.argv[1:]))

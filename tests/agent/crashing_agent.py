"""An agent that kills itself with SIGKILL at a point named by `TEST_CRASH_AT`, once: for tests of what
survives.

`persisted`: right after reservations were made durable, before their limits are set. `limit-set`: right after
a limit was set, before it is told of. `full`: no crash, but every write of a reservation fails for want of space.
`care-held`: no crash, but what came of an order about a card is written down only once there is a file `let-go` beside
the record; until then there is a file `held`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from aliquot.agent import limits_setter
from aliquot.agent.core.caring import CareRecord
from aliquot.agent.disk import checkpoint, durable
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


def _hold_results_back() -> None:
    real = durable.write_record

    def write_record(path: Path, kind: str, payload: Any, *arguments: Any, **more: Any) -> None:
        if isinstance(payload, CareRecord) and payload.begun is None:
            path.with_name("held").touch()
            while not path.with_name("let-go").exists():
                time.sleep(0.01)
        real(path, kind, payload, *arguments, **more)

    durable.write_record = write_record


def arm(point: str) -> None:
    """Install the fault."""
    if point == "persisted":
        _crash_when_persisted()
    elif point == "limit-set":
        _crash_when_limit_is_set()
    elif point == "full":
        _full_disk()
    elif point == "care-held":
        _hold_results_back()


if __name__ == "__main__":
    arm(os.environ["TEST_CRASH_AT"])
    sys.exit(main(sys.argv[1:]))

"""Writes, changes and removes reservations, dying with SIGKILL one step later each time, until it comes to the end.

`checkpoint_writer.py FOLDER`: try N works in FOLDER/N and says in FOLDER/N.said how far it got. Each is a process of
its own, forked from this one: an interpreter for each would take a hundred times as long.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from aliquot.agent.core.model import Holder, ProcessKey, Reservation, SliceSpec, StopOrder
from aliquot.agent.core.reservations import order_stop
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.processes.attachments import Attachments
from tests.agent.crashing_agent import arm

STEPS_MAX = 200


def record(number: int) -> Reservation:
    return Reservation(
        SliceSpec(f"l-{number}.1.0", f"l-{number}", 1, "GPU-a", 100, 1 << 30, secret_sha256=b"\0\xff" * 16)
    )


def write(directory: Path, step: int, said: TextIO) -> None:
    """All of it, if it lives that long."""
    checkpoint = Checkpoint.open(directory, "boot-1")
    arm(f"persist-{step}")
    checkpoint.save([record(1), record(2)])
    print("saved 1 2", file=said, flush=True)
    checkpoint.save([order_stop(record(1), StopOrder(5, 1000, "released"), 3)])
    print("stopped 1", file=said, flush=True)
    attachments = Attachments(checkpoint)
    attachments.add(Holder("l-2", 1, 0), ProcessKey(1, 1), 1000, "")
    print("attached 2", file=said, flush=True)
    checkpoint.forget(["l-1.1.0"])
    print("forgot 1", file=said, flush=True)


def main() -> int:
    """0 once a try has come to its end."""
    folder = Path(sys.argv[1])
    for step in range(STEPS_MAX):
        child = os.fork()
        if child == 0:
            with (folder / f"{step}.said").open("w") as said:
                write(folder / str(step), step, said)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return 0
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
    return 1


if __name__ == "__main__":
    sys.exit(main())

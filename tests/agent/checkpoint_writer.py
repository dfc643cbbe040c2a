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
from aliquot.agent.disk.files import Disk
from aliquot.agent.processes.attachments import Attachments

STEPS_MAX = 200


class DyingDisk(Disk):
    """A disk under a process that dies at the n-th call that changes something, before it or half way through."""

    def __init__(self) -> None:
        self.left = STEPS_MAX * 2

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        self._step()
        super().write(path, data[: len(data) // 2], sync=False)
        self._step()
        super().write(path, data, sync=sync)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


def record(number: int) -> Reservation:
    return Reservation(
        SliceSpec(f"l-{number}.1.0", f"l-{number}", 1, "GPU-a", 100, 1 << 30, secret_sha256=b"\0\xff" * 16)
    )


def write(directory: Path, step: int, said: TextIO) -> None:
    """All of it, if it lives that long."""
    disk = DyingDisk()
    checkpoint = Checkpoint.open(directory, "boot-1", disk)
    disk.left = step
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

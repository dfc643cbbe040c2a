"""Writes, changes and removes reservations, dying with SIGKILL at the step its second argument names.

`checkpoint_writer.py DIRECTORY STEP`: says on standard output how far it got.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aliquot.agent.attachments import Attachments
from aliquot.agent.checkpoint import Checkpoint
from aliquot.agent.core.model import Holder, ProcessKey, Reservation, SliceSpec, StopOrder
from aliquot.agent.core.reservations import order_stop
from tests.agent.crashing_agent import arm


def record(number: int) -> Reservation:
    return Reservation(
        SliceSpec(f"l-{number}.1.0", f"l-{number}", 1, "GPU-a", 100, 1 << 30, secret_sha256=b"\0\xff" * 16)
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    directory, step = Path(sys.argv[1]), sys.argv[2]
    checkpoint = Checkpoint.open(directory, "boot-1")
    arm(f"persist-{step}")
    checkpoint.save([record(1), record(2)])
    say("saved 1 2")
    checkpoint.save([order_stop(record(1), StopOrder(5, 1000, "released"), 3)])
    say("stopped 1")
    attachments = Attachments(checkpoint)
    attachments.add(Holder("l-2", 1, 0), ProcessKey(1, 1), 1000, "")
    say("attached 2")
    checkpoint.forget(["l-1.1.0"])
    say("forgot 1")
    say("done")


if __name__ == "__main__":
    main()

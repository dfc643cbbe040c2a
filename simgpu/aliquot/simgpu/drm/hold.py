"""A program that takes memory of a simulated card, piece by piece, and says how far it came.

    python -m aliquot.simgpu.drm.hold /tmp/machine --minor 128 --most 2Gi --hold

See `common.pieces`. It also says what of that is in the machine's memory instead. With `--seconds` it keeps it so long.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from aliquot.common import pieces
from aliquot.simgpu.drm.machine import Machine, OutOfMemory


def main(arguments: list[str] | None = None) -> int:
    """0, or 4 where there is no such card."""
    parser = pieces.arguments(__doc__)
    parser.add_argument("machine", type=Path)
    parser.add_argument("--minor", type=int, required=True)
    parser.add_argument("--driver", default="", help="taken for the sake of programs on real cards")
    parser.add_argument("--seconds", type=float, default=0.0, help="keep it so long")
    options = parser.parse_args(arguments)
    machine, pid = Machine(options.machine), os.getpid()
    cards = enumerate(machine.books().cards)
    places = [
        (index, place) for index, card in cards for place, part in enumerate(card.parts) if part.minor == options.minor
    ]
    if not places:
        return 4
    client = machine.take(pid, places[0][0], 0, part=places[0][1])

    def more(size_bytes: int) -> None:
        try:
            machine.more(client, size_bytes)
        except OutOfMemory as error:
            raise pieces.Refused(pieces.OUT_OF_MEMORY) from error

    answer = pieces.take(options, more)
    answer["spilled_bytes"] = sum(each.spilled_bytes for each in machine.books().held if each.pid == pid)
    pieces.say(answer, hold=options.hold)
    time.sleep(options.seconds)
    machine.end(pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())

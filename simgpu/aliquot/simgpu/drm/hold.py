"""A program that takes memory of a simulated card, piece by piece, and says how far it came.

    python -m aliquot.simgpu.drm.hold /tmp/machine --minor 128 --most 2Gi --hold

One line of JSON: what it took, what of that is in the machine's memory instead, the error that refused more (0: nobody
did; 2: there was no room). With `--hold` it keeps what it has until its standard input is closed, with `--seconds` so
long.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from aliquot.common.quantity import parse_bytes
from aliquot.simgpu.drm.machine import Machine, OutOfMemory

OUT_OF_MEMORY = 2


def main(arguments: list[str] | None = None) -> int:
    """0, or 4 where there is no such card."""
    parser = argparse.ArgumentParser(prog="python -m aliquot.simgpu.drm.hold", description=__doc__.splitlines()[0])
    parser.add_argument("machine", type=Path)
    parser.add_argument("--minor", type=int, required=True)
    parser.add_argument("--driver", default="", help="taken for the sake of programs on real cards")
    parser.add_argument("--piece", type=parse_bytes, default=64 << 20)
    parser.add_argument("--most", type=parse_bytes, required=True)
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.0, help="keep it so long")
    options = parser.parse_args(arguments)
    machine = Machine(options.machine)
    places = [
        (index, place)
        for index, card in enumerate(machine.books().cards)
        for place, part in enumerate(card.parts)
        if part.minor == options.minor
    ]
    if not places:
        return 4
    answer = {"pid": os.getpid(), "held_bytes": 0, "spilled_bytes": 0, "error": 0}
    try:
        client = machine.take(os.getpid(), places[0][0], 0, part=places[0][1])
        while answer["held_bytes"] + options.piece <= options.most:
            machine.more(client, options.piece)
            answer["held_bytes"] += options.piece
    except OutOfMemory:
        answer["error"] = OUT_OF_MEMORY
    answer["spilled_bytes"] = sum(each.spilled_bytes for each in machine.books().held if each.pid == os.getpid())
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    if options.hold:
        sys.stdin.read()
    time.sleep(options.seconds)
    machine.end(os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A program that takes device memory one way, piece by piece, until it is refused, and says how far it came.

    python -m aliquot.agent.doctor.probe --way async --piece 64Mi --most 6Gi

One line of JSON on standard output: what it held, the error that refused it (0: nobody did), what it was told
is free and in total. With `--hold` it keeps what it has until its standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from aliquot.agent.doctor.cuda import Driver, DriverError, DriverMissing, Lookup
from aliquot.agent.doctor.ways import WAYS, Release
from aliquot.common.quantity import parse_bytes


def main(arguments: list[str] | None = None) -> int:
    """0, or 4 where there is no device to try it on."""
    options = _parse(arguments)
    answer: dict[str, Any] = {"pid": os.getpid(), "way": options.way, "held_bytes": 0, "error": 0, "call": ""}
    pieces: list[Release] = []
    try:
        driver = Driver(options.device, Lookup(options.lookup))
    except DriverMissing as error:
        _say(answer | {"missing": error.message})
        return 4
    except DriverError as error:
        _say(answer | {"error": error.code, "call": error.call})
        return 0
    begun = time.monotonic()
    answer["free_before_bytes"], answer["total_bytes"] = driver.memory_info()
    try:
        while answer["held_bytes"] + options.piece <= options.most:
            pieces.append(WAYS[options.way](driver, options.piece))
            answer["held_bytes"] += options.piece
    except DriverError as error:
        answer |= {"error": error.code, "call": error.call}
    answer["free_after_bytes"] = driver.memory_info()[0]
    answer["took_s"] = round(time.monotonic() - begun, 3)
    _say(answer)
    if options.hold:
        sys.stdin.read()
    if options.release:
        for release in reversed(pieces):
            release()
        _say({"free_released_bytes": driver.memory_info()[0]})
    return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aliquot.agent.doctor.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=sorted(WAYS), default="malloc", help="how to take memory")
    parser.add_argument("--piece", type=parse_bytes, default=64 << 20, help="bytes at a time (default 64Mi)")
    parser.add_argument("--most", type=parse_bytes, required=True, help="stop here if nobody refuses")
    parser.add_argument("--device", type=int, default=0, help="CUDA's ordinal")
    parser.add_argument("--lookup", choices=[each.value for each in Lookup], default=Lookup.LINKER.value)
    parser.add_argument("--hold", action="store_true", help="keep it until standard input is closed")
    parser.add_argument("--release", action="store_true", help="give it back at the end, and say what is free then")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

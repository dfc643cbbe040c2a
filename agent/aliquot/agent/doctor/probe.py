"""A program that takes device memory piece by piece, until it is refused, and says how far it came.

    python -m aliquot.agent.doctor.probe --piece 64Mi --most 6Gi

One line of JSON on standard output: what it held, the error that refused it (0: nobody did), what it was told
is free and in total. With `--hold` it keeps what it has until its standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64
from typing import Any

from aliquot.common.cuda import Driver, DriverError, DriverMissing
from aliquot.common.quantity import parse_bytes

Release = Callable[[], None]


def malloc(driver: Driver, size_bytes: int) -> Release:
    """A piece, by cuMemAlloc; answers how to give it back."""
    pointer = c_uint64()
    driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
    return lambda: driver.call("cuMemFree_v2", pointer)


def main(
    arguments: list[str] | None = None,
    take: Callable[[Driver, int], Release] = malloc,
    load: Callable[[int], Driver] = Driver,
) -> int:
    """0, or 4 where there is no device to try it on. `load` opens the driver on a device of this number."""
    options = _parse(arguments)
    answer: dict[str, Any] = {"pid": os.getpid(), "held_bytes": 0, "error": 0, "call": ""}
    pieces: list[Release] = []
    try:
        driver = load(options.device)
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
            pieces.append(take(driver, options.piece))
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
    parser.add_argument("--piece", type=parse_bytes, default=64 << 20, help="bytes at a time (default 64Mi)")
    parser.add_argument("--most", type=parse_bytes, required=True, help="stop here if nobody refuses")
    parser.add_argument("--device", type=int, default=0, help="CUDA's ordinal")
    parser.add_argument("--hold", action="store_true", help="keep it until standard input is closed")
    parser.add_argument("--release", action="store_true", help="give it back at the end, and say what is free then")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""A program that takes device memory piece by piece, until it is refused, and says how far it came.

    python -m aliquot.agent.doctor.probe --piece 64Mi --most 6Gi

See `common.pieces`. It also says what it was told is free and in total.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64

from aliquot.common import pieces
from aliquot.common.cuda import Driver, DriverError, DriverMissing

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
    parser = pieces.arguments(__doc__)
    parser.add_argument("--device", type=int, default=0, help="CUDA's ordinal")
    parser.add_argument("--release", action="store_true", help="give it back at the end, and say what is free then")
    options = parser.parse_args(arguments)
    held: list[Release] = []

    def more(size_bytes: int) -> None:
        try:
            held.append(take(driver, size_bytes))
        except DriverError as error:
            raise pieces.Refused(error.code, call=error.call) from error

    try:
        driver = load(options.device)
        before = driver.memory_info()
    except DriverMissing as error:
        pieces.say(pieces.answer(missing=error.message))
        return 4
    except DriverError as error:
        pieces.say(pieces.answer(error=error.code, call=error.call))
        return 0
    answer = {"call": ""} | pieces.take(options, more)
    answer["free_before_bytes"], answer["total_bytes"] = before
    answer["free_after_bytes"] = driver.memory_info()[0]
    pieces.say(answer, hold=options.hold)
    if options.release:
        for release in reversed(held):
            release()
        pieces.say({"free_released_bytes": driver.memory_info()[0]})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Brings compiled scoring in once its coordinator is busy, and in a large pool as soon as several requests come.

Compiling takes seconds the first time on a machine, and loading numba about a second and 100 MB. Neither may delay the
start of a coordinator, and nobody needs either while nothing is asked for, however large the pool: a coordinator that
comes back with all its leases is awaited by agents, not by requests. Until then NumPy computes the scores: the same
integers, slower.

A compiler holds Python's interpreter lock for long stretches, so it runs in a process of its own, of low priority,
which leaves its result in numba's cache. Where that has it already no process is started; an image can bring it along:
`python -m aliquot.coordinator.upkeep.warming`. While the coordinator loads the result, its threads switch more often.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import TypeVar

from aliquot.coordinator.core.placement.accelerated import needs_compiling, warm_up
from aliquot.coordinator.programmes import ProgrammeError, run_programme

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 0.5
LARGE_POOL = 2_000
"""Devices for which a pass by NumPy takes long enough to be spared."""
BUSY_PASSES_PER_LOOK = 50
"""100 passes a second by NumPy, of a few tenths of a millisecond each. A rate: any pool reaches a count in time."""
LARGE_PASSES_PER_LOOK = 5
"""The same in a large pool, where each pass takes longer."""

COMPILE_S_MAX = 120.0
"""A compilation that takes longer is ended, and done in this process."""
TURN_S = 0.0005
"""How long a thread keeps the interpreter from another that wants it, while one of them loads: a tenth of Python's."""


async def compile_when_wanted(
    passes: Callable[[], int], devices: Callable[[], int], settle: Callable[[], None]
) -> None:
    """Wait until so many scoring passes are made, for so many devices, then load the compiled ones in a thread, for the
    next decision on.

    `settle` is called once they are loaded.
    """
    seen = passes()
    while (now := passes()) - seen < (BUSY_PASSES_PER_LOOK if devices() < LARGE_POOL else LARGE_PASSES_PER_LOOK):
        seen = now
        await asyncio.sleep(LOOK_S)  # polled: an event would cost every decision
    if await _load(needs_compiling):
        await _compile_elsewhere()
    why_not = await _load(warm_up)
    if why_not:
        log.info("placement stays with NumPy, which is slower and decides the same: %s", why_not)
        return
    log.info("placement scores by compiled code from here on")
    settle()  # what numba brought is as lasting as the rest


async def _compile_elsewhere() -> None:
    """Have numba's cache filled; where that fails, so will loading, which says why."""
    try:
        await run_programme(__name__, b"", within_s=COMPILE_S_MAX)
    except ProgrammeError as error:
        log.info("compiling in a process of its own: %s", error)


async def _load(call: Callable[[], T]) -> T:
    """Call it in a thread, with short turns meanwhile."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        return await asyncio.to_thread(call)
    finally:
        sys.setswitchinterval(before_s)


def main() -> int:
    """Compile now, giving way to everybody else. The exit code says whether the compiled scores can be had."""
    os.nice(10)
    why_not = warm_up()
    if why_not:
        sys.stderr.write(f"{why_not}\n")
    return 1 if why_not else 0


if __name__ == "__main__":
    sys.exit(main())

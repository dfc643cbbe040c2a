"""Brings compiled scoring in once its coordinator is busy, and in a large pool as soon as all its devices are known.

Compiling takes seconds the first time on a machine, and numba's own import half a second and 100 MB. So all of that is
a programme that runs when nobody else does, and answers with machine code; numba's cache has it the next time, and an
image can bring it along: `python -m aliquot.coordinator.upkeep.warming >/dev/null`. What a coordinator does itself is
to load the code, in a few hundredths of a second and half the memory: nobody who waits for a lease or comes back in a
storm notices. Until then NumPy computes the scores: the same integers, slower.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable

from aliquot.coordinator.core.placement.accelerated import load
from aliquot.coordinator.programmes import ProgrammeError, run_programme

log = logging.getLogger(__name__)

LOOK_S = 0.5
LARGE_POOL = 2_000
"""Devices for which a pass by NumPy takes long enough to be spared."""
SETTLED_LOOKS = 4
"""So long no device of a large pool has come or gone. Then it is not being filled, nor read from its journal, and those
who ask first need not ask beside a compiler."""
BUSY_PASSES_PER_LOOK = 50
"""100 passes a second by NumPy, of a few tenths of a millisecond each. A rate: any pool reaches a count in time."""

COMPILE_S_MAX = 900.0
"""A compilation that takes longer is ended, and placement stays with NumPy. It has only what others leave."""


async def compile_when_wanted(passes: Callable[[], int], devices: Callable[[], int]) -> None:
    """Wait until so many scoring passes are made, or so many devices are known, then have the compiled ones made and
    loaded, for the next decision on.
    """
    made, known, settled = passes(), 0, 0
    while settled < SETTLED_LOOKS:
        await asyncio.sleep(LOOK_S)  # polled: an event would cost every decision
        before, made = made, passes()
        if made - before >= BUSY_PASSES_PER_LOOK:
            break
        before, known = known, devices()
        settled = settled + 1 if known == before and known >= LARGE_POOL else 0
    try:
        code = await run_programme(__name__, b"", within_s=COMPILE_S_MAX)
        await asyncio.to_thread(load, code)
    except (ProgrammeError, RuntimeError) as why_not:
        log.info("placement stays with NumPy, which is slower and decides the same: %s", why_not)
        return
    log.info("placement scores by compiled code from here on")


def main() -> None:
    """Write the compiled code to the standard output, giving way to everybody else.

    Raises:
        SystemExit: there can be none; the message says why.
    """
    if sys.platform == "linux":  # at nice 10 it still ran beside a request's turn, and nearly doubled its wait
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from aliquot.coordinator.core.placement.machine_code import compiled  # noqa: PLC0415 - the programme's part

    try:
        sys.stdout.buffer.write(compiled())
    except RuntimeError as why_not:
        sys.exit(str(why_not))


if __name__ == "__main__":
    main()

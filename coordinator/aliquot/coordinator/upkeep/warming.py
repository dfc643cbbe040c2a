"""Brings compiled scoring in once a coordinator is busy enough to want it.

Compiling takes seconds the first time on a machine, and loading numba about one: neither may keep a coordinator from
being ready, nor a small pool from staying small. Until then the scores come from NumPy, and they are the same integers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aliquot.coordinator.core.placement.accelerated import warm_up
from aliquot.coordinator.upkeep import gc

log = logging.getLogger(__name__)

LOOK_S = 0.5
BUSY_PASSES_PER_LOOK = 50
"""100 passes a second by NumPy, of a few tenths of a millisecond each: a rate, as a count would only put it off."""


async def compile_when_busy(passes: Callable[[], int]) -> None:
    """Wait until so many scoring passes are made, then load the compiled ones in a thread, for the next decision on."""
    seen = passes()
    while (now := passes()) - seen < BUSY_PASSES_PER_LOOK:
        seen = now
        await asyncio.sleep(LOOK_S)  # decisions count their passes, and are not to wake anybody
    why_not = await asyncio.to_thread(warm_up)
    if why_not:
        log.info("placement stays with NumPy, which is slower and decides the same: %s", why_not)
        return
    log.info("placement scores by compiled code from here on")
    gc.settle()  # what numba brought is as lasting as the rest

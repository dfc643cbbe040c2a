"""Brings compiled scoring in once a coordinator is busy enough to want it.

Compiling takes seconds the first time on a machine, and loading numba about one: neither may keep a coordinator from
being ready, nor a small pool from staying small. Until then the scores come from NumPy, and they are the same integers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aliquot.coordinator import gc
from aliquot.coordinator.core.placement.accelerated import warm_up

log = logging.getLogger(__name__)

LOOK_S = 0.5


async def compile_when_busy(wanted: Callable[[], bool]) -> None:
    """Wait until `wanted`, then load the compiled scoring in a thread; it is used from the next decision on."""
    while not wanted():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)  # decisions count their passes, and are not to wake anybody
    why_not = await asyncio.to_thread(warm_up)
    if why_not:
        log.info("placement stays with NumPy, which is slower and decides the same: %s", why_not)
        return
    log.info("placement scores by compiled code from here on")
    gc.settle()  # what numba brought is as lasting as the rest

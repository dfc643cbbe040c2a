"""Measures fragmentation in small steps between decisions, so that the metrics are never much out of date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.fragmentation import FragmentationSampler
from aliquot.coordinator.reading.metrics import Metrics

REST_S = 5.0
"""Between two passes."""

STEP_EVERY_S = 0.05
"""Between two steps of a pass: a thousand nodes are measured in a quarter of a second, ten thousand in two."""


async def follow_fragmentation(engine: Callable[[], Engine | None], metrics: Metrics) -> None:
    """Sample for as long as the coordinator leads. `engine` gives None while the State is being read again."""
    sampler: FragmentationSampler | None = None
    while True:
        current = engine()
        if current is None:
            sampler = None
        elif sampler is None or sampler.engine is not current:
            sampler = FragmentationSampler(current)
        over = sampler is None or sampler.step()
        if sampler is not None and over:
            metrics.fragmentation = sampler.latest
        await asyncio.sleep(REST_S if over else STEP_EVERY_S)

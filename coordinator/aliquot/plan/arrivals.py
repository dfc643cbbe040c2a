"""The openb study's arrival lists: a shuffled list grown or cut to a multiple of the pool's capacity."""

from __future__ import annotations

import random
from collections.abc import Sequence

from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI
from aliquot.plan.traces import TraceRequest


def share_of(request: TraceRequest) -> int:
    """Thousandths of a device that a request takes in all."""
    demand = request.demand
    return demand.gang_size * demand.count * (demand.share_milli or WHOLE_SHARE_MILLI)


def tuned_arrivals(
    requests: Sequence[TraceRequest], capacity_milli: int, ratio_milli: int, seed: int
) -> list[TraceRequest]:
    """Requests sorted by name and shuffled; then, to `ratio_milli` thousandths of the capacity, more of them
    drawn with replacement until the next would exceed it, or random ones dropped until they fit.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible shuffle, nothing secret
    ordered = sorted(requests, key=lambda request: request.name)
    arrivals = list(ordered)
    rng.shuffle(arrivals)
    limit = capacity_milli * ratio_milli // 1000
    total = sum(map(share_of, arrivals))
    while total > limit and arrivals:
        total -= share_of(arrivals.pop(rng.randrange(len(arrivals))))
    while arrivals:
        extra = rng.choice(ordered)
        if total + share_of(extra) > limit:
            break
        total += share_of(extra)
        arrivals.append(extra)
    return arrivals

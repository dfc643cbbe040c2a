"""The openb study's arrival lists: a shuffled list grown or cut to a multiple of the pool's capacity."""

from __future__ import annotations

import random
from collections.abc import Sequence

from aliquot.plan.traces import TraceRequest


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
    total = sum(each.demand.share_in_all for each in arrivals)
    while total > limit and arrivals:
        total -= arrivals.pop(rng.randrange(len(arrivals))).demand.share_in_all
    while arrivals:
        extra = rng.choice(ordered)
        if total + extra.demand.share_in_all > limit:
            break
        total += extra.demand.share_in_all
        arrivals.append(extra)
    return arrivals

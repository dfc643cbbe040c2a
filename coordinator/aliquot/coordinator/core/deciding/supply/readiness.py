"""What will be asked for in the time that a node takes to come, and room for it.

Requests come in bursts: somebody who has asked asks again, for the same. So each kind of request is expected again at
the rate at which it came in the last few lead times, or in the last twelve if that is more, and room is kept for the
quantile of its number that the policy names (`ready_permille`). The number is taken to be negative binomial, with a
variance of three times its mean: chosen with the quantile, as what cost and waited least on public lists.

A kind is placed as it would be if it were asked for: on what is free, then on nodes that are on their way. A sum of
free devices would not tell that no node is left for a request of eight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from aliquot.coordinator.core.books.supply import SupplySpec
from aliquot.coordinator.core.deciding.supply.waiting import Need
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.offers import members_per_node
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import Demand

NEAR_LEADS, FAR_LEADS = 3, 12
"""The spans, in lead times, over which rates are taken."""
STAY_LEADS = 6
"""A node stays empty for so many lead times before it is given back: what is slow to come is not sent away soon."""
DISPERSION = 3
"""Variance of the number of requests in a lead time over its mean."""
COUNTED_MAX = 4_096
"""Waiting requests of one kind that count."""
KINDS_MAX = 64
EXPECTED_MAX = 256
"""Requests that are expected of one kind."""
PLACED_MAX = 64
"""Members that one look finds room for: a few ms."""


class Expected(NamedTuple):
    """So many requests of a kind are to be ready for."""

    demand: Demand
    requests: int


def expected(known: Known, spec: SupplySpec, needs: Sequence[Need], now_ms: int) -> list[Expected]:
    """What to be ready for beside those who wait, the largest first. Nothing where the policy wants none."""
    permille = spec.policy.ready_permille
    leads = [shape.lead_ms for shape in spec.shapes if shape.lead_ms]
    if not permille or not leads:
        return []
    near, far = Counter[Demand](), Counter[Demand]()
    longest_ms = FAR_LEADS * max(leads)
    asked = Counter(dict.fromkeys((need.demand for need in needs), 0))
    for need in needs:
        asked[need.demand] += min(len(need.lease_ids), COUNTED_MAX)
    lead_of = {demand: _lead_ms(spec, demand) for demand in asked}
    near.update(asked)
    far.update(asked)
    for asked_ms, demand in known.recent.since(now_ms - longest_ms):
        if demand not in lead_of:
            if len(lead_of) >= KINDS_MAX:
                continue
            lead_of[demand] = _lead_ms(spec, demand)
        far[demand] += asked_ms >= now_ms - FAR_LEADS * lead_of[demand]
        near[demand] += asked_ms >= now_ms - NEAR_LEADS * lead_of[demand]
    means = {
        demand: max(near[demand] / NEAR_LEADS, number / FAR_LEADS)
        for demand, number in far.items()
        if number and lead_of[demand]
    }
    left = at_most(sum(means.values()), permille)
    found: list[Expected] = []
    for demand in sorted(means, key=lambda each: (-each.share_in_all, repr(each))):
        number = min(at_most(means[demand], permille), left, EXPECTED_MAX)
        if number:
            found.append(Expected(demand, number))
            left -= number
    return found


def _lead_ms(spec: SupplySpec, demand: Demand) -> int:
    """How soon a node can come that serves it; 0: none can."""
    return min((shape.lead_ms for shape in spec.shapes if members_per_node(shape, demand)), default=0)


def at_most(mean: float, permille: int) -> int:
    """The number that is not exceeded with this probability (below 1000), of a negative binomial with this mean and
    `DISPERSION` times it as its variance.
    """
    if mean <= 0 or permille <= 0:
        return 0
    size, kept = mean / (DISPERSION - 1), 1 / DISPERSION
    term = total = math.exp(size * math.log(kept))
    number = 0
    while total * 1000 < permille and number < EXPECTED_MAX:
        term *= (size + number) / (number + 1) * (1 - kept)
        number += 1
        total += term
    return number


def members(several: Sequence[Expected]) -> list[Demand]:
    """One by one, and each member of a gang by itself: they need not sit together. At most `PLACED_MAX`."""
    found: list[Demand] = []
    for demand, requests in several:
        single = replace(demand, gang_size=1) if demand.gang_size > 1 else demand
        found += [single] * min(requests * demand.gang_size, PLACED_MAX - len(found))
    return found


def put(known: Known, inventory: Inventory, demand: Demand) -> bool:
    """Place it, on trial, on what is free; False: it does not fit."""
    placement = known.engine.place(demand)
    if placement is None:
        return False
    hold(inventory, demand, placement)
    return True

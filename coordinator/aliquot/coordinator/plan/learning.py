"""Policies that learn, in replays: what the coordinator's background worker does, done in line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.placement.mix import mix_type
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.types import Demand
from aliquot.coordinator.price_programme import learn_prices

FIRST_LESSON = 200
"""Arrivals before the first prices; the next lessons come each time the arrivals have doubled."""


def teach(policy: Policy, mix: Counter[Demand], version: int = 1) -> None:
    """Give a policy the prices, or the mix, that follow from these requests."""
    types: Counter[Demand] = Counter()
    for demand, count in mix.items():
        types[mix_type(demand)] += count
    if isinstance(policy, Price):
        table = learn_prices(types, version)
        if table is not None:
            policy.set_prices(table)
    elif policy.mix_dependent:
        policy.set_mix(tuple(types.items()))


def online(policy: Policy) -> Callable[[int, Demand], None]:
    """A watcher of arrivals that teaches the policy from what has arrived so far, ever more rarely."""
    seen: Counter[Demand] = Counter()
    lesson = FIRST_LESSON

    def watch(arrival: int, demand: Demand) -> None:
        nonlocal lesson
        seen[demand] += 1
        if arrival + 1 == lesson:
            lesson *= 2
            teach(policy, seen, arrival + 1)

    return watch

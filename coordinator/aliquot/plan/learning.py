"""Policies that learn, in replays: what the coordinator's background worker does, done in line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.placement.mix import mix_type
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.types import Demand
from aliquot.coordinator.upkeep.price_programme import learn_prices

FIRST_LESSON = 200
"""Arrivals before the first prices; the next lessons come each time the arrivals have doubled."""


def teach(policy: Policy, mix: Counter[Demand], version: int = 1) -> None:
    """Give a policy the prices, or the mix, that follow from these requests."""
    if isinstance(policy, Price):
        table = _prices(mix, version)
        if table is not None:
            policy.set_prices(table)
    elif policy.mix_dependent:
        policy.set_mix(tuple(_types(mix).items()))


class Lessons:
    """Prices from what has arrived so far, ever more rarely."""

    def __init__(self, policy: Policy) -> None:
        """A policy that knows no prices is given none."""
        self._wanted = isinstance(policy, Price)
        self._seen: Counter[Demand] = Counter()
        self._next = FIRST_LESSON
        self._arrivals = 0

    def note(self, demand: Demand) -> PriceTable | None:
        """Count an arrival; a table, where it is time for one."""
        if not self._wanted:
            return None
        self._seen[demand] += 1
        self._arrivals += 1
        if self._arrivals < self._next:
            return None
        self._next *= 2
        return _prices(self._seen, self._arrivals)


def online(policy: Policy) -> Callable[[int, Demand], None]:
    """A watcher of arrivals that gives the policy its prices at once."""
    lessons = Lessons(policy)

    def watch(arrival: int, demand: Demand) -> None:
        del arrival
        table = lessons.note(demand)
        if table is not None and isinstance(policy, Price):
            policy.set_prices(table)

    return watch


def _prices(mix: Counter[Demand], version: int) -> PriceTable | None:
    return learn_prices(_types(mix), version)


def _types(mix: Counter[Demand]) -> Counter[Demand]:
    types: Counter[Demand] = Counter()
    for demand, count in mix.items():
        types[mix_type(demand)] += count
    return types

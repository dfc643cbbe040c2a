"""Policies that learn, in replays: what the coordinator's background worker does, done in line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.placement.mix import class_totals, mix_type
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand
from aliquot.coordinator.upkeep.price_learner import FIRST_LESSON
from aliquot.coordinator.upkeep.price_programme import learn_prices

LOOK_EVERY = 50
"""Arrivals between two looks at what has changed hands."""


REPEATED_PERMILLE = 50
"""Another lesson when so much of the pool's share has been taken or given back since the last."""


class Lessons:
    """Prices from what has arrived so far: when that has doubled, and whenever much of the pool has changed hands."""

    def __init__(self, policy: Policy, inventory: Inventory) -> None:
        """A policy that knows no prices is given none."""
        self._wanted = isinstance(policy, Price)
        self._inventory = inventory
        self._idle_milli = -1
        self._seen: Counter[Demand] = Counter()
        self._next = FIRST_LESSON
        self._arrivals = 0

    def note(self, demand: Demand) -> PriceTable | None:
        """Count an arrival; a table, where it is time for one."""
        if not self._wanted:
            return None
        self._seen[demand] += 1
        self._arrivals += 1
        if self._arrivals < self._next and not (self._arrivals % LOOK_EVERY == 0 and self._has_changed()):
            return None
        if self._arrivals >= self._next:
            self._next *= 2
        self._idle_milli = self._idle()
        return learn_prices(types_of(self._seen), self._arrivals, class_totals(self._inventory))

    def _has_changed(self) -> bool:
        if self._idle_milli < 0:
            return False
        capacity = WHOLE_SHARE_MILLI * sum(each.devices for each in class_totals(self._inventory))
        return abs(self._idle() - self._idle_milli) * 1000 >= capacity * REPEATED_PERMILLE

    def _idle(self) -> int:
        return sum(each.idle_milli for each in class_totals(self._inventory))


def online(policy: Policy, inventory: Inventory) -> Callable[[int, Demand], None]:
    """A watcher of arrivals that gives the policy its prices at once."""
    lessons = Lessons(policy, inventory)

    def watch(arrival: int, demand: Demand) -> None:
        del arrival
        table = lessons.note(demand)
        if table is not None and isinstance(policy, Price):
            policy.set_prices(table)

    return watch


def types_of(mix: Counter[Demand]) -> Counter[Demand]:
    """How often each type of a mix is asked for."""
    types: Counter[Demand] = Counter()
    for demand, count in mix.items():
        types[mix_type(demand)] += count
    return types

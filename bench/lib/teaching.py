"""A lesson at once, for benches and tests: in a replay, policies learn from what arrives."""

from __future__ import annotations

from collections import Counter

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.placement.mix import class_totals
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.upkeep.price_programme import learn_prices
from aliquot.plan.learning import types_of
from bench.lib.published import Fgd


def teach(policy: Policy, mix: Counter[Demand], inventory: Inventory, version: int = 1) -> None:
    """Give a policy the prices that follow from these requests on this pool, or the mix where it is the study's."""
    if isinstance(policy, Price):
        table = learn_prices(types_of(mix), version, class_totals(inventory))
        if table is not None:
            policy.set_prices(table)
    elif isinstance(policy, Fgd):
        policy.expect(mix.elements(), inventory)

"""The protocol of the openb study, and how a policy learns from it what is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.placement.fragmentation import typical
from aliquot.coordinator.core.placement.mix import by_share, mix_type, reference_bytes
from aliquot.coordinator.core.values.types import Demand
from aliquot.plan.learning import online
from aliquot.plan.traces import TraceRequest

FIRST_SEED = 42
PERCENTS = (100, 130)
"""Where the figures are taken: so much of the capacity has arrived."""
ARRIVE_MILLI = 1300
"""How much arrives in all."""


def watcher(
    policy: Policy, requests: Sequence[TraceRequest], inventory: Inventory
) -> Callable[[int, Demand], None] | None:
    """What is to see each arrival; None: the policy has been given the whole mix, as the study gives it to `fgd`, with
    memory as the part of a typical device that it is.
    """
    if policy.mix_dependent:
        mix = Counter(mix_type(each.demand) for each in requests)
        policy.set_mix(typical(by_share(mix, reference_bytes(inventory))))
        return None
    return online(policy, inventory)

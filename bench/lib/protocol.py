"""The protocol of the openb study, and how a policy learns from it what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Policy
from aliquot.coordinator.core.values.types import Demand
from aliquot.plan.learning import online
from aliquot.plan.traces import TraceRequest
from bench.lib.published import Fgd

FIRST_SEED = 42
PERCENTS = (100, 130)
"""Where the figures are taken: so much of the capacity has arrived."""
ARRIVE_MILLI = 1300
"""How much arrives in all."""


def watcher(
    policy: Policy, requests: Sequence[TraceRequest], inventory: Inventory
) -> Callable[[int, Demand], None] | None:
    """What is to see each arrival; None: the policy has been given the whole mix, as the study gives it to `fgd`."""
    if isinstance(policy, Fgd):
        policy.expect((each.demand for each in requests), inventory)
        return None
    return online(policy, inventory)

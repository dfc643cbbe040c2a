"""Replays requests on an inventory of its own, and keeps what a user wants to know of it.

`fill` is the openb study's protocol: one pass, nothing leaves, nothing is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.fragmentation import Mix, measure
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import Demand, NodeSpec


def pool_of(nodes: Iterable[NodeSpec]) -> Inventory:
    """An inventory of these nodes, all ready; their order is their rank."""
    inventory = Inventory()
    for spec in nodes:
        inventory.put_node(spec)
        inventory.set_grantable(spec.node_id, grantable=True)
    return inventory


def capacity_milli(inventory: Inventory) -> int:
    """Share of all devices."""
    return sum(totals.share_capacity_milli for totals in inventory.totals().values())


@dataclass(slots=True)
class Curve:
    """What was allocated as requests arrived, in thousandths of a device; one entry per arrival, refusals too."""

    capacity_milli: int
    arrived_milli: list[int] = field(default_factory=list)
    allocated_milli: list[int] = field(default_factory=list)
    refused: int = 0

    def at(self, percent: int) -> float:
        """Mean allocation in % over the arrivals at which the arrived demand rounds to `percent` % of the capacity."""
        values = [
            allocated
            for arrived, allocated in zip(self.arrived_milli, self.allocated_milli, strict=True)
            if round(100 * arrived / self.capacity_milli) == percent
        ]
        if not values:
            raise ValueError(f"no arrival falls on {percent} % of the capacity; the list is too short")
        return 100 * sum(values) / len(values) / self.capacity_milli


def fill(
    engine: Engine,
    demands: Sequence[Demand],
    *,
    before: Callable[[int, Demand], None] | None = None,
) -> Curve:
    """Place each demand in turn; what does not fit is refused for good. `before` sees each arrival first."""
    inventory = engine.inventory
    curve = Curve(capacity_milli(inventory))
    arrived = allocated = 0
    for arrival, demand in enumerate(demands):
        if before is not None:
            before(arrival, demand)
        asked = demand.share_in_all
        arrived += asked
        placement = engine.place(demand)
        if placement is None:
            curve.refused += 1
        else:
            hold(inventory, demand, placement)
            allocated += asked
        curve.arrived_milli.append(arrived)
        curve.allocated_milli.append(allocated)
    return curve


def fragmented_percent(engine: Engine, mix: Mapping[Demand, int]) -> float:
    """Of what is idle now, what a mix of requests can't use."""
    parts = measure(engine.inventory, Mix(tuple(mix.items()))).values()
    idle = sum(part.idle_milli for part in parts)
    return 100 * sum(part.fragmented_milli for part in parts) / idle if idle else 0.0

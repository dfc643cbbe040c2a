"""Moving leases on trial: what every plan of moves is made of.

A plan never changes the inventory: leases are put elsewhere on trial, one after another, each seeing the moves before
it, and all is put back before the plan is returned. Every new place fits while all old ones are still held, so
`core.moving.decide` can hold the new places first, and no lease can be lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.values.types import Demand, Placement


class PlacedLease(NamedTuple):
    """What a plan of moves knows of a lease."""

    lease_id: str
    demand: Demand
    placement: Placement
    movable: bool


class LeaseMove(NamedTuple):
    """One lease from where it is to where it would go."""

    lease_id: str
    source: Placement
    target: Placement


LeasesByNode = Mapping[str, Sequence[PlacedLease]]
"""By node. A gang stands on each of its nodes."""


def hold(inventory: Inventory, demand: Demand, placement: Placement) -> None:
    """Reserve all of a placement."""
    for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
        for plan in slices:
            inventory.reserve(plan)
        inventory.reserve_member(node_id, demand)


def let_go(inventory: Inventory, demand: Demand, placement: Placement) -> None:
    """The opposite of `hold`."""
    for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
        for plan in slices:
            inventory.release(plan)
        inventory.release_member(node_id, demand)


class Moves:
    """Leases that are moved within a trial, one after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.made: list[LeaseMove] = []
        """In the order in which they must be made."""

    def move(self, placed: PlacedLease, avoid_node_ids: tuple[str, ...] = ()) -> Placement | None:
        """Put a lease where the policy likes it best now, beside its old place and outside of the nodes that earlier
        moves left; None if that is nowhere.
        """
        demand = placed.demand
        left = {node_id for made in self.made for node_id in made.source.node_ids}
        avoid = demand.avoid_node_ids + avoid_node_ids + tuple(sorted(left))
        target = self._engine.place(msgspec.structs.replace(demand, avoid_node_ids=avoid) if avoid else demand)
        if target is not None:
            let_go(self._engine.inventory, demand, placed.placement)
            hold(self._engine.inventory, demand, target)
            self.made.append(LeaseMove(placed.lease_id, placed.placement, target))
        return target

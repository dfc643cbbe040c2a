"""Moving leases: the trial that every plan of moves is made of, and undone with.

A plan never changes the inventory: leases are put elsewhere on trial, one after another, each seeing the moves before
it, and all is put back before the plan is returned. Every new place fits while all old ones are still held, so whoever
carries the plan out (`core.decide.moving`) can hold the new places first and no lease can be lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from aliquot.coordinator.core.inventory import Inventory, member_kind
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.types import Demand, Placement


class Occupant(NamedTuple):
    """A lease as far as moving it goes."""

    lease_id: str
    demand: Demand
    placement: Placement
    movable: bool


class Move(NamedTuple):
    """One lease from where it is to where it would go."""

    lease_id: str
    source: Placement
    target: Placement


Occupants = Mapping[str, Sequence[Occupant]]
"""By node. A gang's lease stands on each of its nodes and is never moved."""


def hold(inventory: Inventory, demand: Demand, placement: Placement) -> None:
    """Reserve all of a placement."""
    kind = member_kind(demand.count, demand.share_milli)
    for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
        for plan in slices:
            inventory.reserve(plan)
        inventory.reserve_member(
            node_id,
            cpu_milli=demand.cpu_milli,
            host_memory_bytes=demand.host_memory_bytes,
            affinity_group=demand.affinity_group,
            kind=kind,
        )


def let_go(inventory: Inventory, demand: Demand, placement: Placement) -> None:
    """Undo `hold`."""
    kind = member_kind(demand.count, demand.share_milli)
    for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
        for plan in slices:
            inventory.release(plan)
        inventory.release_member(
            node_id,
            cpu_milli=demand.cpu_milli,
            host_memory_bytes=demand.host_memory_bytes,
            affinity_group=demand.affinity_group,
            kind=kind,
        )


class Trial:
    """A context in which leases may be moved on trial; everything is as before at its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.moves: list[tuple[Occupant, Placement]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo_to(0)

    def move(self, occupant: Occupant, avoid_node_ids: tuple[str, ...] = ()) -> Placement | None:
        """Put a lease where the policy likes it best now, beside its old place and outside of the nodes that earlier
        moves left; None if that is nowhere.
        """
        demand = occupant.demand
        left = {node_id for moved, _ in self.moves for node_id in moved.placement.node_ids}
        avoid = demand.avoid_node_ids + avoid_node_ids + tuple(sorted(left))
        target = self._engine.place(msgspec.structs.replace(demand, avoid_node_ids=avoid) if avoid else demand)
        if target is None:
            return None
        self.redo(occupant, target)
        return target

    def redo(self, occupant: Occupant, target: Placement) -> None:
        """Make a move that is known to be possible."""
        inventory, demand = self._engine.inventory, occupant.demand
        let_go(inventory, demand, occupant.placement)
        hold(inventory, demand, target)
        self.moves.append((occupant, target))

    def undo_to(self, count: int) -> None:
        """Take moves back until `count` are left."""
        inventory = self._engine.inventory
        while len(self.moves) > count:
            occupant, target = self.moves.pop()
            let_go(inventory, occupant.demand, target)
            hold(inventory, occupant.demand, occupant.placement)

    def planned(self) -> tuple[Move, ...]:
        """The moves on trial, in the order in which they must be made."""
        return tuple(Move(o.lease_id, o.placement, target) for o, target in self.moves)

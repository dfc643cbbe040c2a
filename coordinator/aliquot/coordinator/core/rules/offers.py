"""Nodes that are not there, laid out: what would fit them is asked of the engine itself, on an inventory of their own.

So what is counted on a node that is on its way is placed by the same rules as on those that are there, and a look costs
the same however large the pool is. Of a gang, what fits the pool now is left out: members need not sit together.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import msgspec

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.supply import NodeShape
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.room import room, rooms
from aliquot.coordinator.core.rules.mig import conceivable
from aliquot.coordinator.core.rules.supply import on_their_way
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import Demand, NodeSpec, Placement

MEMBERS_KEPT = 1_024
LAID_OUT_MAX = 256
"""Nodes that are laid out at a time."""


def spec_of(shape: NodeShape, node_id: str) -> NodeSpec:
    """A node of this shape, by this name."""
    devices = tuple(
        msgspec.structs.replace(device, uuid=f"{node_id}/{number}") for number, device in enumerate(shape.node.devices)
    )
    return msgspec.structs.replace(shape.node, node_id=node_id, name=node_id, devices=devices, cards=())


class LaidOut:
    """Nodes of shapes, empty at first, on which demands are put one after another."""

    def __init__(self) -> None:
        self._number = 0

    @cached_property
    def _inventory(self) -> Inventory:
        return Inventory()

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._inventory, make_policy("binpack"), compiled=False)

    def add(self, shape: NodeShape) -> str:
        """One more node of this shape; returns its name here."""
        self._number += 1
        node_id = f"{shape.name}~{self._number}"
        self._inventory.put_node(spec_of(shape, node_id))
        self._inventory.set_grantable(node_id, True)
        return node_id

    def put(self, demand: Demand) -> Placement | None:
        """Place it and hold it there; None: it does not fit."""
        # As few nodes as will do, whoever asks: what a queue's own policy spreads would have more nodes ordered.
        placement = self._engine.place(msgspec.structs.replace(demand, placement=""))
        if placement is None:
            return None
        hold(self._inventory, demand, placement)
        return placement

    def fill(self, demand: Demand, members: int, *, up: bool = False) -> int:
        """Put so many members on nodes that they fill, and close these; returns how many there was room for.
        With `up`, also on a last one that they do not fill.
        """
        left = members
        for shape in self._engine.matcher.shapes(demand):
            fit = rooms(self._inventory, demand, shape)
            for row in fit.nonzero()[0].tolist():
                node = self._inventory.table.node_of_row[row]
                if node is not None and left and (fit[row] <= left or up):
                    self._inventory.set_grantable(node.spec.node_id, False)
                    left -= min(left, int(fit[row]))
        return members - left

    def room(self, demand: Demand) -> int:
        """How many members of it fit."""
        return max((room(self._inventory, demand, shape) for shape in self._engine.matcher.shapes(demand)), default=0)


@lru_cache(maxsize=MEMBERS_KEPT)
def members_per_node(shape: NodeShape, demand: Demand) -> int:
    """How many members of a demand an empty node of a shape takes."""
    one = LaidOut()
    one.add(shape)
    return one.room(demand)


def servable(known: Known, demand: Demand) -> bool:
    """Whether the pool could ever serve a demand: as it is, with cards cut for it, or with nodes that are on offer."""
    return known.engine.possible(demand) or conceivable(known, demand) or on_offer(known, demand)


def on_offer(known: Known, demand: Demand) -> bool:
    """Whether nodes could come that serve a demand, with what there is or by themselves."""
    spec = known.supply.spec
    if spec is None or demand.node_ids:
        return False
    members = sum(members_per_node(shape, demand) * shape.nodes_max for shape in spec.shapes)
    if members and members < demand.gang_size:
        members += max(
            (room(known.inventory, demand, shape, empty=True) for shape in known.engine.matcher.shapes(demand)),
            default=0,
        )
    return members >= demand.gang_size


# --------------------
# What a waiting request is told about nodes that were ordered.


SHOWN_MAX = 3


def notes(known: Known, lease: Lease, demand: Demand, now_ms: int) -> list[str]:
    """Nodes on their way that would take a member of it; or that one could be ordered."""
    spec = known.supply.spec
    if spec is None:
        return []
    suits = [shape.name for shape in spec.shapes if members_per_node(shape, demand)]
    coming = [order for order in on_their_way(known) if order.shape in suits]
    found = [
        f"a node is on its way: {order.node_name} ({order.order_id}), expected "
        + (f"in {(order.due_ms - now_ms) // 1000} s" if order.due_ms > now_ms else "any moment")
        for order in sorted(coming, key=lambda order: order.due_ms)[:SHOWN_MAX]
    ]
    if len(coming) > SHOWN_MAX:
        found.append(f"{len(coming) - SHOWN_MAX} more nodes are on their way")
    if suits and not coming:
        if not spec.policy.act:
            return [f"a node of shape {suits[0]} would serve it; ordering is off (`aliquot supply act on`)"]
        wait_s = max(0, lease.created_ms + spec.policy.target_wait_ms - now_ms) // 1000
        which = " or ".join(suits[:SHOWN_MAX])
        return [f"a node of shape {which} is ordered if nothing else serves it within {wait_s} s"]
    return found

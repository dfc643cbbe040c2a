"""Which nodes are of a shape, which are on their way, and what they cost."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.books.supply import HOUR_MS, SHAPE_LABEL, NodeShape, Order, SupplySpec, Way
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.types import NodeState


class Here(NamedTuple):
    """A node of a shape that is there, and may be used or not."""

    shape: NodeShape
    node: Node

    @property
    def name(self) -> str:
        """By which it is ordered."""
        return self.node.spec.name


def is_up(node: Node) -> bool:
    """Whether it is a machine that runs, as far as is known."""
    if node.state is NodeState.DECLARED:
        return node.spec.agentless
    return node.state is not NodeState.LOST


def shape_of_node(known: Known, spec: SupplySpec, node: Node) -> NodeShape | None:
    """The shape that a node is of, by its label, by the name that it was ordered under, or as a machine of the shape;
    None: it is nobody's to order or give back.
    """
    named = next((value for key, value in node.spec.labels if key == SHAPE_LABEL), "")
    if not named:
        slot = known.supply.slots.get(node.spec.name)
        named = slot.shape if slot is not None else ""
    shape = spec.shape(named) if named else None
    if shape is None:
        shape = next((shape for shape in spec.shapes if node.spec.name in shape.machines), None)
    return shape if shape is not None and shape.node.pool == node.spec.pool else None


def nodes_here(known: Known, spec: SupplySpec) -> list[Here]:
    """Nodes of the shapes that are there, by name: those that are up, and those lost that may still be paid."""
    shaped = known.memory.part(_Shaped, _Shaped).look(known, spec)
    found = []
    for node_id, shape in shaped:
        node = known.nodes[node_id]
        up = is_up(node)
        if up or (node.state is NodeState.LOST and not shape.machines):
            found.append(Here(shape, node))
    return found


class _Shaped:
    """Which nodes are of which shapes, by name: found anew only when nodes or orders have changed."""

    def __init__(self) -> None:
        self._key: tuple[int, int] = (-1, -1)
        self._found: list[tuple[str, NodeShape]] = []

    def look(self, known: Known, spec: SupplySpec) -> list[tuple[str, NodeShape]]:
        """(node, its shape)."""
        key = (known.inventory.structure_version, known.supply.changes)
        if key != self._key:
            self._key = key
            shaped = ((node, shape_of_node(known, spec, node)) for node in known.nodes.values())
            named = sorted((node.spec.name, node.spec.node_id, shape) for node, shape in shaped if shape is not None)
            self._found = [(node_id, shape) for _, node_id, shape in named]
        return self._found


def open_orders(known: Known, way: Way) -> Iterator[Order]:
    """Orders that are not over, the oldest first."""
    return (order for _, order in sorted(known.supply.orders.items()) if order.way is way)


def on_their_way(known: Known) -> list[Order]:
    """Orders of nodes that are not up yet."""
    return [order for order in open_orders(known, Way.ADD) if not _has_come(known, order)]


def _has_come(known: Known, order: Order) -> bool:
    node_id = known.node_ids_by_name.get(order.node_name, "")
    node = known.nodes.get(node_id)
    return node is not None and (node.state is NodeState.READY or (is_up(node) and node.spec.agentless))


def free_name(known: Known, shape: NodeShape, taken: set[str]) -> str:
    """The name for another node of a shape: of those that are free, the one that changed longest ago. Empty: none."""
    if shape.machines:
        names = list(shape.machines)
    else:
        names = [f"{shape.name}-{number}" for number in range(1, 2 * shape.nodes_max + len(taken) + 1)]
    slots = known.supply.slots
    free = [
        name
        for name in names
        if name not in taken
        and (name not in slots or slots[name].shape == shape.name)
        and not _in_use(known, shape, name)
    ]
    if not free:
        return ""
    return min(free, key=lambda name: (slots[name].removed_ms if name in slots else 0, names.index(name)))


def _in_use(known: Known, shape: NodeShape, name: str) -> bool:
    """A machine is known while it sleeps; a node that was made and is known may be anywhere still."""
    node = known.nodes.get(known.node_ids_by_name.get(name, ""))
    if node is None:
        return False
    return not shape.machines or is_up(node) or bool(known.slice_ids_by_node[node.spec.node_id])


class Costs(NamedTuple):
    """What nodes of the shapes cost, in millionths of the currency."""

    hour_micro: int
    """As many as there are, with those on their way, in an hour."""
    month_micro: int
    """Since the calendar month (UTC) began."""


def costs(known: Known, here: list[Here], coming: list[Order], now_ms: int) -> Costs:
    """What is paid now, and was paid this month."""
    start_ms = month_start_ms(now_ms)
    slots = known.supply.slots
    hour = sum(each.shape.price_micro for each in here) + sum(order.price_micro for order in coming)
    month = sum(spell.price_micro * max(0, spell.to_ms - max(spell.from_ms, start_ms)) for spell in known.supply.spells)
    month += sum(
        slot.price_micro * max(0, now_ms - max(slot.here_ms, start_ms)) for slot in slots.values() if slot.here_ms
    )
    return Costs(hour, month // HOUR_MS)


def month_start_ms(now_ms: int) -> int:
    """When the calendar month began, in UTC."""
    now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
    return int(dt.datetime(now.year, now.month, 1, tzinfo=dt.UTC).timestamp()) * 1000


def free_and_capacity(inventory: Inventory, pool: str, model: str) -> tuple[int, int]:
    """(what is free, what there is) of a model on open nodes of a pool, in thousandths of devices."""
    table = inventory.table
    rows = table.rows
    if pool not in inventory.pools or not rows:
        return 0, 0
    classes = np.array([device_class.model == model for device_class in inventory.classes] + [False], np.bool_)
    chosen = (
        table.grantable[:rows] & (table.pool[:rows] == inventory.pools.index(pool)) & classes[table.class_id[:rows]]
    )
    free = int(table.share_left[:rows][chosen].sum())
    numbers = np.flatnonzero(chosen).tolist()
    capacity = sum(device.spec.compute_milli for row in numbers for device in table.devices_of_row[row])
    return free, capacity


# --------------------
# How many more nodes may be ordered: of a shape, of a pool, at a time, and for the money.


class Bounds:
    """See the module's docstring. Counts what is there, what is on its way, and what one look adds."""

    def __init__(self, known: Known, spec: SupplySpec, here: list[Here], coming: list[Order], now_ms: int) -> None:
        self._known, self._spec, self._now_ms = known, spec, now_ms
        self._of_shape = Counter(each.shape.name for each in here) + Counter(order.shape for order in coming)
        self._of_pool = Counter(each.shape.node.pool for each in here) + Counter(order.pool for order in coming)
        self._open = len(known.supply.orders)
        self.taken = {order.node_name for order in known.supply.orders.values()}
        self.costs = costs(known, here, coming, now_ms)
        self._hour_micro = self.costs.hour_micro

    def against(self, shape: NodeShape) -> str:
        """Why no more of a shape may be ordered; empty: one may."""
        policy, pool = self._spec.policy, shape.node.pool
        if self._of_shape[shape.name] >= shape.nodes_max:
            return f"all {shape.nodes_max} nodes of shape {shape.name} are here or on their way"
        bound = self._spec.bound(pool).nodes_max
        if 0 <= bound <= self._of_pool[pool]:
            return f"pool {pool} may have {bound} nodes of shapes"
        if self._open >= policy.orders_max:
            return f"{self._open} orders are open, which is the bound"
        rest = self._known.supply.rests.get(shape.name)
        if rest is not None and rest.until_ms > self._now_ms:
            return f"shape {shape.name} could not be had ({rest.problem}) and is not asked for again yet"
        if policy.hour_micro and self._hour_micro + shape.price_micro > policy.hour_micro:
            return "the budget for an hour would be exceeded"
        kept_ms = max(HOUR_MS, policy.keep_ms)
        promised = (self._hour_micro + shape.price_micro) * kept_ms // HOUR_MS
        if policy.month_micro and self.costs.month_micro + promised > policy.month_micro:
            return "the budget for the month would be exceeded"
        return "" if free_name(self._known, shape, self.taken) else f"no machine of shape {shape.name} is free"

    def take(self, shape: NodeShape) -> str:
        """Count one more; returns its name."""
        name = free_name(self._known, shape, self.taken)
        self.taken.add(name)
        self._of_shape[shape.name] += 1
        self._of_pool[shape.node.pool] += 1
        self._open += 1
        self._hour_micro += shape.price_micro
        return name

    def give_back(self, shape: NodeShape, name: str) -> None:
        """It is not needed after all."""
        self.taken.discard(name)
        self._of_shape[shape.name] -= 1
        self._of_pool[shape.node.pool] -= 1
        self._open -= 1
        self._hour_micro -= shape.price_micro

"""How many more nodes may be ordered: of a shape, of a pool, at a time, and for the money."""

from __future__ import annotations

from collections import Counter

from aliquot.coordinator.core.capacity.nodes import Here, costs, free_name
from aliquot.coordinator.core.capacity.records import HOUR_MS, CapacitySpec, NodeShape, Order
from aliquot.coordinator.core.planning import Planning


class Bounds:
    """See the module's docstring. Counts what is there, what is on its way, and what one look adds."""

    def __init__(self, state: Planning, spec: CapacitySpec, here: list[Here], coming: list[Order], now_ms: int) -> None:
        self._state, self._spec, self._now_ms = state, spec, now_ms
        self._of_shape = Counter(each.shape.name for each in here) + Counter(order.shape for order in coming)
        self._of_pool = Counter(each.shape.node.pool for each in here) + Counter(order.pool for order in coming)
        self._open = len(state.capacity.orders)
        self.taken = {order.node_name for order in state.capacity.orders.values()}
        self.costs = costs(state, here, coming, now_ms)
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
        rest = self._state.capacity.rests.get(shape.name)
        if rest is not None and rest.until_ms > self._now_ms:
            return f"shape {shape.name} could not be had ({rest.problem}) and is not asked for again yet"
        if policy.hour_micro and self._hour_micro + shape.price_micro > policy.hour_micro:
            return "the budget for an hour would be exceeded"
        kept_ms = max(HOUR_MS, policy.keep_ms)
        promised = (self._hour_micro + shape.price_micro) * kept_ms // HOUR_MS
        if policy.month_micro and self.costs.month_micro + promised > policy.month_micro:
            return "the budget for the month would be exceeded"
        return "" if free_name(self._state, shape, self.taken) else f"no machine of shape {shape.name} is free"

    def take(self, shape: NodeShape) -> str:
        """Count one more; returns its name."""
        name = free_name(self._state, shape, self.taken)
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

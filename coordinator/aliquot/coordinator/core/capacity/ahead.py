"""Nodes that a forecast wants earlier than anybody waits for them."""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.capacity.bounds import Bounds
from aliquot.coordinator.core.capacity.expectation import Forecasts
from aliquot.coordinator.core.capacity.records import CapacitySpec, NodeShape, Order
from aliquot.coordinator.core.planning import Planning


class Advice(NamedTuple):
    """One node that should be ordered, and why."""

    shape: NodeShape
    name: str
    why: str
    early: bool = False
    """A forecast wants it; nobody waits for it yet."""


def ahead(
    state: Planning, spec: CapacitySpec, bounds: Bounds, coming: list[Order], chosen: list[Advice], now_ms: int
) -> list[Advice]:
    """What to order beside `chosen`. It adds to what the queue asks for, and never takes anything away."""
    forecasts = state.memory.part(Forecasts, Forecasts)
    found: list[Advice] = []
    for pool, model in forecasts.of(now_ms):
        shapes = [
            shape
            for shape in spec.shapes
            if shape.node.pool == pool and any(device.model == model for device in shape.node.devices)
        ]
        if not shapes:
            continue
        shape = min(shapes, key=lambda each: (each.price_micro / _milli(each, model), each.name))
        wanted_milli = forecasts.wanted_milli(pool, model, now_ms, now_ms + shape.lead_ms)
        wanted_milli += wanted_milli * spec.headroom_permille(pool) // 1000
        usable = _usable_milli(state, pool, model)
        usable += sum(_milli(other, model) for order in coming if (other := spec.shape(order.shape)) is not None)
        usable += sum(_milli(advice.shape, model) for advice in chosen)
        while usable < wanted_milli and not bounds.against(shape):
            usable += _milli(shape, model)
            why = f"{wanted_milli / 1000:g} devices {model} of pool {pool} are expected to be used by the time it comes"
            found.append(Advice(shape, bounds.take(shape), why, early=True))
    return found


def _milli(shape: NodeShape, model: str) -> int:
    return max(1, sum(device.compute_milli for device in shape.node.devices if device.model == model))


def _usable_milli(state: Planning, pool: str, model: str) -> int:
    """What could be leased of a model in a pool now."""
    return sum(
        device.spec.compute_milli
        for node_id, node in state.nodes.items()
        if node.spec.pool == pool and node.grantable
        for device in state.inventory.node(node_id).devices
        if device.spec.model == model and device.healthy and device.present
    )

"""Nodes that come before anybody waits for them: those that a forecast wants, those for requests like
the latest, and spare ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aliquot.coordinator.core.books.demand import Forecasts
from aliquot.coordinator.core.books.supply import NodeShape, Order, SupplySpec
from aliquot.coordinator.core.deciding.supply.readiness import expected, members, put
from aliquot.coordinator.core.deciding.supply.waiting import Need
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.offers import LaidOut, members_per_node
from aliquot.coordinator.core.rules.supply import Bounds, free_and_capacity


class Advice(NamedTuple):
    """One node that should be ordered, and why."""

    shape: NodeShape
    name: str
    why: str
    early: bool = False
    """A forecast wants it; nobody waits for it yet."""


def ahead(
    known: Known, spec: SupplySpec, bounds: Bounds, coming: list[Order], chosen: list[Advice], now_ms: int
) -> list[Advice]:
    """What to order beside `chosen`. It adds to what the queue asks for, and never takes anything away."""
    forecasts = known.memory.part(Forecasts, Forecasts)
    found: list[Advice] = []
    for pool, model in forecasts.of(now_ms):
        shapes = _with_model(spec, pool, model)
        if not shapes:
            continue
        shape = shapes[0]
        wanted_milli = forecasts.wanted_milli(pool, model, now_ms, now_ms + shape.lead_ms)
        wanted_milli += wanted_milli * spec.headroom_permille(pool) // 1000
        usable = _usable_milli(known, pool, model)
        usable += sum(_milli(other, model) for order in coming if (other := spec.shape(order.shape)) is not None)
        usable += sum(_milli(advice.shape, model) for advice in chosen)
        while usable < wanted_milli and not bounds.against(shape):
            usable += _milli(shape, model)
            why = f"{wanted_milli / 1000:g} devices {model} of pool {pool} are expected to be used by the time it comes"
            found.append(Advice(shape, bounds.take(shape), why, early=True))
    return found


def ready(
    known: Known, spec: SupplySpec, bounds: Bounds, laid_out: LaidOut, needs: Sequence[Need], now_ms: int
) -> list[Advice]:
    """What to order so that those who are likely to ask before a node could come find room."""
    found: list[Advice] = []
    wanted = expected(known, spec, needs, now_ms)
    if not wanted:
        return found
    with known.inventory.trial() as inventory:
        for demand in members(wanted):
            if put(known, inventory, demand) or laid_out.put(demand) is not None:
                continue
            shapes = [each for each in spec.shapes if members_per_node(each, demand) and not bounds.against(each)]
            if not shapes:
                continue
            shape = min(shapes, key=lambda each: (each.price_micro / members_per_node(each, demand), each.name))
            laid_out.add(shape)
            asked = sum(each.requests for each in wanted)
            why = f"room for {asked} more requests like the latest is wanted before a node could come"
            found.append(Advice(shape, bounds.take(shape), why))
            laid_out.put(demand)
    return found


def _with_model(spec: SupplySpec, pool: str, model: str) -> list[NodeShape]:
    """The shapes that bring devices of a model into a pool, the one at the least cost for each first."""
    found = [
        shape
        for shape in spec.shapes
        if shape.node.pool == pool and any(device.model == model for device in shape.node.devices)
    ]
    return sorted(found, key=lambda each: (each.price_micro / _milli(each, model), each.name))


def _milli(shape: NodeShape, model: str) -> int:
    return max(1, sum(device.compute_milli for device in shape.node.devices if device.model == model))


def _usable_milli(known: Known, pool: str, model: str) -> int:
    """What could be leased of a model in a pool now."""
    return sum(
        device.spec.compute_milli
        for node_id, node in known.nodes.items()
        if node.spec.pool == pool and node.grantable
        for device in known.inventory.node(node_id).devices
        if device.spec.model == model and device.healthy and device.present
    )


def spare(
    known: Known, spec: SupplySpec, bounds: Bounds, coming: list[Order], chosen: list[Advice], waiting_milli: int
) -> list[Advice]:
    """What to order beside `chosen` so that a part of each model stays free for those who have not asked yet."""
    found: list[Advice] = []
    permille = spec.policy.spare_permille
    kinds = {(shape.node.pool, device.model) for shape in spec.shapes for device in shape.node.devices}
    for pool, model in sorted(kinds) if permille else ():
        shapes = _with_model(spec, pool, model)
        shape = shapes[0]
        free, capacity = free_and_capacity(known.inventory, pool, model)
        ordered = [spec.shape(order.shape) for order in coming] + [advice.shape for advice in chosen]
        more = sum(_milli(each, model) for each in ordered if each is not None and each in shapes)
        free, capacity = free + max(0, more - waiting_milli), capacity + more
        while free * 1000 < capacity * permille and not bounds.against(shape):
            why = f"less than {permille / 10:g} % of {model} in pool {pool} would be free"
            found.append(Advice(shape, bounds.take(shape), why))
            free, capacity = free + _milli(shape, model), capacity + _milli(shape, model)
    return found

"""Which nodes to order: shapes are tried on the real queue until nobody waits longer than the target.

Nodes on their way are laid out first, as if they were there. Then requests are put on them in the order in which they
will be tried; where one does not fit, a node is added of the shape that serves its line at the least cost. In the end
those are left out again without which everybody still fits: what is ordered is a smallest set.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.supply import NodeShape, Order, SupplySpec, Way
from aliquot.coordinator.core.deciding.supply.ahead import Advice, ahead, ready, spare
from aliquot.coordinator.core.deciding.supply.waiting import Need, Served, waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.room import room
from aliquot.coordinator.core.rules.offers import LAID_OUT_MAX, LaidOut, members_per_node
from aliquot.coordinator.core.rules.supply import Bounds, Costs, Here, nodes_here, on_their_way
from aliquot.coordinator.core.values.types import Demand

PLACED_MAX = 128
"""Requests that one look places one by one: some 10 ms. Of those beyond, nodes are counted..."""
BULK_MIN = 32
"""...as of lines longer than this: nodes that equal requests fill are not looked at again."""
LEFT_OUT_TRIED = 4
"""Nodes that one look tries to do without."""


class Unserved(NamedTuple):
    """Requests that wait too long, and for which no node can be ordered."""

    lease_id: str
    requests: int
    why: str


class Growth(NamedTuple):
    """What a look at the queue has found."""

    orders: tuple[Advice, ...]
    served: tuple[Served, ...]
    unserved: tuple[Unserved, ...]
    here: tuple[Here, ...]
    coming: tuple[Order, ...]
    costs: Costs
    oldest_wait_ms: int
    """Of those that only another node would serve."""


class _Wanted(NamedTuple):
    """Equal requests, or what of them does not fit what is there: a gang's members that fit now are left out."""

    demand: Demand
    requests: int


def grow(known: Known, spec: SupplySpec, now_ms: int) -> Growth:
    """What to order now. Changes nothing."""
    here, coming = nodes_here(known, spec), on_their_way(known)
    bounds = Bounds(known, spec, here, coming, now_ms)
    lead_ms = min((shape.lead_ms for shape in spec.shapes), default=0)
    found = waiting(known, spec.policy, lead_ms, now_ms)
    laid_out = _laid_out(spec, coming if found.needs or spec.policy.ready_permille else [])
    chosen: list[Advice] = []
    unserved: list[Unserved] = []
    put: list[_Wanted] = []
    placed = PLACED_MAX
    for need in found.needs:
        wanted = _wanted(known, need)
        demand, gang, left = wanted.demand, wanted.demand.gang_size, wanted.requests
        if left > BULK_MIN:
            left -= laid_out.fill(demand, left * gang) // gang
        why = ""
        while left and not why:
            if placed > 0 and laid_out.put(demand) is not None:
                placed, left = placed - 1, left - 1
                continue
            if placed <= 0:
                left -= -(-laid_out.fill(demand, left * gang, up=True) // gang)
            shape, why = _best(spec, bounds, demand, left) if left else (None, "")
            if shape is None:
                break
            story = _why(known, need, wanted.requests - left)
            full = left * gang // members_per_node(shape, demand)
            if full > 1 or placed <= 0:
                more, served = _in_bulk(bounds, shape, demand, left, story)
                left -= served
            else:
                more = _enough_for_one(laid_out, bounds, shape, demand, story)
            chosen += more
            why = "" if more else bounds.against(shape) or "it does not fit such nodes"
        if left:
            unserved.append(Unserved(need.lease_ids[wanted.requests - left], left, why))
        put.append(_Wanted(demand, wanted.requests - left))
    if sum(wanted.requests for wanted in put) <= BULK_MIN:
        left_in = _without_spare(spec, coming, chosen, put, bounds)
        if len(left_in) < len(chosen):
            chosen, laid_out = left_in, _with_all(spec, coming, left_in, put)
    chosen += ready(known, spec, bounds, laid_out, found.needs, now_ms)
    chosen += ahead(known, spec, bounds, coming, chosen, now_ms)
    asked_milli = sum(len(need.lease_ids) * need.demand.share_in_all for need in found.needs)
    chosen += spare(known, spec, bounds, coming, chosen, asked_milli)
    return Growth(
        tuple(chosen),
        found.served,
        tuple(unserved),
        tuple(here),
        tuple(coming),
        bounds.costs,
        max((need.waited_ms for need in found.needs), default=0),
    )


def _wanted(known: Known, need: Need) -> _Wanted:
    demand = need.demand
    if demand.gang_size > 1:
        now = max((room(known.inventory, demand, shape) for shape in known.engine.matcher.shapes(demand)), default=0)
        if now:
            demand = msgspec.structs.replace(demand, gang_size=max(1, demand.gang_size - now))
    return _Wanted(demand, len(need.lease_ids))


def _best(spec: SupplySpec, bounds: Bounds, demand: Demand, requests: int) -> tuple[NodeShape | None, str]:
    """The shape that serves so many requests at the least cost, and why there is none."""
    best: tuple[tuple[int, int, int, str], NodeShape] | None = None
    why = "no shape on offer would serve it"
    for shape in spec.shapes:
        members = members_per_node(shape, demand)
        if not members:
            continue
        against = bounds.against(shape)
        if against:
            why = against
            continue
        nodes = -(-demand.gang_size * requests // members)
        devices = nodes * len(shape.node.devices)
        key = (nodes * shape.price_micro, devices, shape.lead_ms, shape.name)
        if best is None or key < best[0]:
            best = key, shape
    return (best[1], "") if best is not None else (None, why)


def _enough_for_one(laid_out: LaidOut, bounds: Bounds, shape: NodeShape, demand: Demand, story: str) -> list[Advice]:
    """As many nodes of a shape as the request needs beside what is laid out; none where there may not be so many."""
    added: list[Advice] = []
    while laid_out.room(demand) < demand.gang_size:
        if bounds.against(shape) or len(added) > LAID_OUT_MAX:
            for each in added:
                bounds.give_back(each.shape, each.name)
            return []
        added.append(Advice(shape, bounds.take(shape), story))
        laid_out.add(shape)
    return added


def _in_bulk(bounds: Bounds, shape: NodeShape, demand: Demand, requests: int, story: str) -> tuple[list[Advice], int]:
    """(nodes of a shape that equal requests fill, how many of them they serve)."""
    members = members_per_node(shape, demand)
    wanted = max(1, requests * demand.gang_size // members)
    added: list[Advice] = []
    while len(added) < wanted and not bounds.against(shape):
        added.append(Advice(shape, bounds.take(shape), story))
    served = len(added) * members // demand.gang_size
    if not served:  # not even one gang
        for each in added:
            bounds.give_back(each.shape, each.name)
        return [], 0
    return added, min(requests, served)


def _without_spare(
    spec: SupplySpec, coming: list[Order], chosen: list[Advice], put: list[_Wanted], bounds: Bounds
) -> list[Advice]:
    """Those without which everybody that was put fits all the same are left out: the dearest are tried first."""
    if len(chosen) < 2:
        return chosen
    order = sorted(range(len(chosen)), key=lambda number: (-chosen[number].shape.price_micro, -number))
    spare: set[int] = set()
    for number in order[:LEFT_OUT_TRIED]:
        kept = [advice.shape for other, advice in enumerate(chosen) if other != number and other not in spare]
        if _all_fit(spec, coming, kept, put):
            spare.add(number)
            bounds.give_back(chosen[number].shape, chosen[number].name)
    return [advice for number, advice in enumerate(chosen) if number not in spare]


def _laid_out(spec: SupplySpec, coming: list[Order]) -> LaidOut:
    """Nodes that are on their way, as if they were there."""
    laid_out = LaidOut()
    for order in coming[:LAID_OUT_MAX]:
        shape = spec.shape(order.shape)
        if shape is not None:
            laid_out.add(shape)
    return laid_out


def _with_all(spec: SupplySpec, coming: list[Order], kept: list[Advice], put: list[_Wanted]) -> LaidOut:
    """Nodes on their way and those to order, with everybody who is to be served by them."""
    laid_out = _laid_out(spec, coming)
    for advice in kept:
        laid_out.add(advice.shape)
    for wanted in put:
        for _ in range(wanted.requests):
            laid_out.put(wanted.demand)
    return laid_out


def _all_fit(spec: SupplySpec, coming: list[Order], kept: list[NodeShape], put: list[_Wanted]) -> bool:
    laid_out = _laid_out(spec, coming)
    for shape in kept:
        laid_out.add(shape)
    return all(laid_out.put(wanted.demand) is not None for wanted in put for _ in range(wanted.requests))


def _why(known: Known, need: Need, number: int) -> str:
    lease = known.leases[need.lease_ids[min(number, len(need.lease_ids) - 1)]]
    others = len(need.lease_ids) - number - 1
    more = f" and {others} more like it" if others > 0 else ""
    return f"lease {lease.lease_id} of {need.tenant}{more} would wait longer than the target"


def to_order(advice: Advice, number: int, now_ms: int) -> Order:
    """The order for a node."""
    shape = advice.shape
    return Order(
        number=number,
        way=Way.ADD,
        shape=shape.name,
        pool=shape.node.pool,
        node_name=advice.name,
        why=advice.why,
        ordered_ms=now_ms,
        due_ms=now_ms + shape.lead_ms,
        price_micro=shape.price_micro,
        changed_ms=now_ms,
        early=advice.early,
    )

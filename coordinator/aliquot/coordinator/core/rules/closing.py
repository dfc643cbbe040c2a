"""Nodes that a maintenance window closes: what still fits there because it ends in time, and what they keep waiting.

For requests without a time limit a closing node is as shut as a cordoned one: no pass, no search for victims and no
growth looks at it. Only a request with a time limit that fits nowhere else is tried on nodes that close late enough;
they are opened for that one look.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aliquot.coordinator.core.books.maintenance import Closure, Phase, shown
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.reasons import Reason
from aliquot.coordinator.core.placement.room import listed_rows, slots_per_device
from aliquot.coordinator.core.placement.shapes import ShapeTable
from aliquot.coordinator.core.values.types import Demand, Missing, Placement, RequestSpec, Shortfall

_Which = Callable[[Closure], bool]
OPENED_MAX = 64
"""So many nodes are opened for one look (and as many as a gang has members): some microseconds each."""
FULL_BEFORE_MAX = 4096


def runs_ms(request: RequestSpec) -> int:
    """How long a lease can hold what it gets: its time limit and its grace; 0: unknown."""
    return request.time_limit_ms + request.grace_ms if request.time_limit_ms else 0


def will_have_ended(request: RequestSpec, closure: Closure, now_ms: int) -> bool:
    """Whether it ends before maintenance begins on a node that closes."""
    ends_ms = now_ms + runs_ms(request)
    return request.time_limit_ms > 0 and closure.phase is Phase.CLOSING and ends_ms <= closure.starts_ms


def place_before(known: Known, request: RequestSpec, demand: Demand, now_ms: int) -> Placement | None:
    """A place on nodes that close, for a request that ends before maintenance there begins. Changes nothing."""
    if not known.closed or not request.time_limit_ms:
        return None
    ends_ms = now_ms + runs_ms(request)
    if known.memory.full_before.get(demand, ends_ms + 1) <= ends_ms:
        return None
    placement = _place_on(known, lambda closure: will_have_ended(request, closure, now_ms), demand)
    if placement is None:
        if len(known.memory.full_before) >= FULL_BEFORE_MAX:
            known.memory.full_before.clear()
        known.memory.full_before[demand] = ends_ms
    return placement


def why_not(known: Known, request: RequestSpec, demand: Demand, now_ms: int) -> tuple[Shortfall, int]:
    """What a demand that does not fit lacks, and when a maintenance window that keeps it waiting is over; 0: none does.

    The window is the reason where the demand would fit if the nodes that it closes were open.
    """
    shortfall = known.engine.explain(demand)
    if not known.closed:
        return shortfall, 0
    placement = _place_on(known, lambda _: True, demand)
    if placement is None:
        return shortfall, 0
    named = [node_id for node_id in dict.fromkeys(placement.node_ids) if node_id in known.closed]
    missing = tuple(_missing(known, request, node_id, now_ms) for node_id in named[:8])
    if not missing:
        return shortfall, 0
    words = shortfall.summary.partition(":")[0]
    over_ms = max(known.closed[node_id].ends_ms for node_id in named)
    return Shortfall(False, (*missing, *shortfall.missing), f"{words}: {missing[0].detail}"), over_ms


def closure_text(name: str, closure: Closure) -> str:
    """A closure for people: `node n1: maintenance from … to … (window rack-7: new switches)`."""
    why = f"window {closure.window}" + (f": {closure.reason}" if closure.reason else "")
    return f"node {name}: maintenance from {shown(closure.starts_ms)} to {shown(closure.ends_ms)} ({why})"


def _missing(known: Known, request: RequestSpec, node_id: str, now_ms: int) -> Missing:
    closure = known.closed[node_id]
    node = known.inventory.node(node_id)
    left_s = (closure.starts_ms - now_ms - request.grace_ms) // 1000
    change, instead = f"wait until {shown(closure.ends_ms)}", None
    if closure.phase is Phase.CLOSING and left_s > 0:
        change, instead = f"ask with a time limit of at most {left_s} s, or {change}", request.demand
    label = known.inventory.classes[node.devices[0].class_id].label if node.devices else "no device"
    detail = closure_text(node.spec.name, closure)
    limit_ms = max(left_s, 0) * 1000
    return Missing(label, Reason.MAINTENANCE.value, detail, change, len(node.devices), instead, limit_ms)


def _place_on(known: Known, to_open: _Which, demand: Demand) -> Placement | None:
    """The best place with such nodes open as well."""
    promising = _promising(known, to_open, demand)
    if not promising:
        return None
    with known.inventory.trial() as inventory:
        for node_id in promising:
            inventory.set_grantable(node_id, grantable=True)
        return known.engine.place(demand)


def _promising(known: Known, to_open: _Which, demand: Demand) -> list[str]:
    """Those of the nodes on which a slice fits, by what is left of their devices; a bounded number."""
    inventory = known.inventory
    rows = inventory.table.rows
    fits = np.zeros(rows, np.bool_)
    for shape in known.engine.matcher.shapes(demand):
        shapes = ShapeTable(inventory)
        shapes.put(0, shape)
        suits = shapes.eligible_rows(0) & listed_rows(inventory, demand) & ~inventory.table.grantable[:rows]
        if demand.count:
            suits &= (slots_per_device(inventory, shapes, 0) > 0).sum(axis=1) >= demand.count
        fits |= suits
    found: dict[str, None] = {}
    for row in np.flatnonzero(fits).tolist():
        node = inventory.table.node_of_row[row]
        closure = known.closed.get(node.spec.node_id) if node is not None else None
        if node is not None and closure is not None and to_open(closure):
            found[node.spec.node_id] = None
        if len(found) >= max(OPENED_MAX, demand.gang_size):
            break
    return list(found)

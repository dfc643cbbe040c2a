"""Which nodes to give back: empty ones, as long as guarantees, headroom and what is expected can do without them.

One that is given back is closed in the same step, so nothing is placed there between the order and its going.
"""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.books.demand import Forecasts
from aliquot.coordinator.core.books.supply import Order, Slot, SupplySpec, Way
from aliquot.coordinator.core.books.tenancy.limits import capacity_kept, promised, scale_of
from aliquot.coordinator.core.books.tenancy.promises import MostPromised
from aliquot.coordinator.core.books.tenancy.specs import Amount
from aliquot.coordinator.core.deciding.supply.readiness import STAY_LEADS, expected, members, put
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import counted_on, guarantee_scale
from aliquot.coordinator.core.rules.supply import Here, free_and_capacity, is_up, nodes_here, open_orders
from aliquot.coordinator.core.values.types import NodeState

AT_ONCE_MAX = 8
"""Nodes that one look gives back."""


class Going(NamedTuple):
    """One node that should be given back, and why."""

    here: Here
    why: str


class Kept(NamedTuple):
    """An empty node that stays, and why."""

    here: Here
    why: str


class Shrinkage(NamedTuple):
    """What a look at empty nodes has found."""

    going: tuple[Going, ...]
    kept: tuple[Kept, ...]


class EmptySince:
    """Since when nodes have been empty, as far as was seen: a coordinator that has just begun counts anew."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def look(self, known: Known, here: list[Here], now_ms: int) -> None:
        """Note which are empty now. What was held and given back between two looks counts as use."""
        found: dict[str, tuple[int, int]] = {}
        for each in here:
            node_id = each.node.spec.node_id
            if not is_empty(known, each):
                continue
            version = known.node_versions.get(node_id, 0)
            old = self._since.get(node_id)
            found[node_id] = old if old is not None and old[0] == version else (version, now_ms)
        self._since = found

    def since_ms(self, node_id: str) -> int | None:
        """Since when it is empty; None: it is not."""
        known = self._since.get(node_id)
        return known[1] if known is not None else None


def is_empty(known: Known, here: Here) -> bool:
    """Whether nothing is held there, or kept for anybody."""
    node_id = here.node.spec.node_id
    return not known.slice_ids_by_node[node_id] and not any(
        device.uuid in known.hold_of_device for device in here.node.spec.devices
    )


def shrink(known: Known, spec: SupplySpec, now_ms: int) -> Shrinkage:
    """What to give back now. Changes nothing but what the pool remembers of empty nodes."""
    here = nodes_here(known, spec)
    seen = known.memory.part(EmptySince, EmptySince)
    seen.look(known, here, now_ms)
    leaving = {order.node_name for order in open_orders(known, Way.REMOVE)}
    coming = {(order.pool, order.shape) for order in open_orders(known, Way.ADD)}
    left: dict[str, int] = {}
    for each in here:
        left[each.shape.name] = left.get(each.shape.name, 0) + (each.name not in leaving)
    candidates = [each for each in here if each.name not in leaving and is_empty(known, each)]
    candidates.sort(key=lambda each: (-each.shape.price_micro, seen.since_ms(each.node.spec.node_id) or 0, each.name))
    going: list[Going] = []
    kept: list[Kept] = []
    ready = _kept_ready(known, spec, candidates, now_ms)
    with known.inventory.trial() as inventory:
        for each in candidates:
            lost = each.node.state is NodeState.LOST
            why = "" if lost else ready.get(each.name, "") or _against(known, spec, inventory, each, coming, now_ms)
            if not lost and not why and left[each.shape.name] <= each.shape.nodes_min:
                why = f"{each.shape.nodes_min} of shape {each.shape.name} are kept in any case"
            if lost and not _long_lost(known, spec, each, now_ms):
                why = "it was lost, and may come back"
            if not why and len(going) == AT_ONCE_MAX:
                why = f"{AT_ONCE_MAX} nodes go first"
            if why:
                kept.append(Kept(each, why))
                if not lost and each.node.grantable:
                    inventory.set_grantable(each.node.spec.node_id, True)
                continue
            left[each.shape.name] -= 1
            minutes = (now_ms - (seen.since_ms(each.node.spec.node_id) or now_ms)) // 60_000
            story = "it was lost" if lost else f"empty for {minutes} minutes, and nobody waits for it"
            going.append(Going(each, story))
    return Shrinkage(tuple(going), tuple(kept))


def _kept_ready(known: Known, spec: SupplySpec, candidates: list[Here], now_ms: int) -> dict[str, str]:
    """Empty nodes without which those who are likely to ask soon would find no room, by name, with the reason."""
    wanted = members(expected(known, spec, (), now_ms))
    found: dict[str, str] = {}
    closed = [each for each in candidates if each.node.grantable and is_up(each.node)]
    if not wanted or not closed:
        return found
    with known.inventory.trial() as inventory:
        for each in closed:
            inventory.set_grantable(each.node.spec.node_id, False)
        for demand in wanted:
            while not put(known, inventory, demand):
                if not closed:
                    return found
                each = closed.pop()  # the cheapest, and of those the one that became empty last
                inventory.set_grantable(each.node.spec.node_id, True)
                found[each.name] = "it is kept for requests like the latest"
    return found


def _kept(known: Known, inventory: Inventory) -> Amount:
    """What promises rest on without the nodes that are closed on trial."""
    counted = (known.nodes[node_id] for node_id in counted_on(known))
    ids = [node.spec.node_id for node in counted if inventory.node(node.spec.node_id).grantable or not node.grantable]
    return capacity_kept(inventory, ids)


def _stay_ms(spec: SupplySpec, each: Here) -> int:
    """How long an empty node stays: where room is kept ready, the longer the longer another takes to come."""
    stay_ms = STAY_LEADS * each.shape.lead_ms if spec.policy.ready_permille else 0
    return max(spec.policy.idle_ms, stay_ms)


def _long_lost(known: Known, spec: SupplySpec, each: Here, now_ms: int) -> bool:
    since_ms = known.memory.part(EmptySince, EmptySince).since_ms(each.node.spec.node_id)
    return since_ms is not None and now_ms - since_ms >= spec.policy.late_ms


def _against(
    known: Known,
    spec: SupplySpec,
    inventory: Inventory,
    each: Here,
    coming: set[tuple[str, str]],
    now_ms: int,
) -> str:
    """Why an empty node stays; empty: it may go, and is closed on trial."""
    policy, node = spec.policy, each.node
    slot = known.supply.slots.get(each.name, Slot(each.shape.name))
    since_ms = known.memory.part(EmptySince, EmptySince).since_ms(node.spec.node_id)
    if not node.grantable:
        return "it is not open: somebody has other plans for it"
    stay_ms = _stay_ms(spec, each)
    if since_ms is None or now_ms - since_ms < stay_ms:
        return f"it has not been empty for {stay_ms // 60_000} minutes"
    if now_ms - max(slot.here_ms, slot.added_ms) < policy.keep_ms:
        return f"it has not been here for {policy.keep_ms // 60_000} minutes"
    if slot.removed_ms and now_ms - slot.removed_ms < policy.rest_ms:
        return f"it was given back within the last {policy.rest_ms // 3_600_000} hours already"
    if (each.shape.node.pool, each.shape.name) in coming:
        return "another of its shape is on its way"
    # A guarantee that a window raises tomorrow counts on nodes that are there then: nobody orders them for it before.
    most = known.memory.part(MostPromised, MostPromised).of(known.tenancy, now_ms) if known.tenancy.guarantees else None
    before = guarantee_scale(known)
    if most is not None and most != promised(known.tenancy):
        before = scale_of(most, _kept(known, inventory))
    inventory.set_grantable(node.spec.node_id, False)
    if most is not None and scale_of(most, _kept(known, inventory)) < before:
        return "guarantees count on it"
    for model in {device.model for device in node.spec.devices}:
        free, capacity = free_and_capacity(inventory, node.spec.pool, model)
        if capacity and free * 1000 < capacity * spec.headroom_permille(node.spec.pool):
            return f"less than {spec.headroom_permille(node.spec.pool) / 10:g} % of {model} would be free"
        horizon_ms = each.shape.lead_ms + policy.keep_ms
        wanted = known.memory.part(Forecasts, Forecasts).wanted_milli(
            node.spec.pool, model, now_ms, now_ms + horizon_ms
        )
        if capacity < wanted:
            return f"{wanted / 1000:g} devices {model} are expected to be used soon"
    return ""


def to_order(known: Known, going: Going, number: int, now_ms: int) -> Order:
    """The order that takes a node away."""
    here = going.here
    past = [
        order
        for order in known.supply.closed
        if order.way is Way.ADD and order.node_name == here.name and order.reference
    ]
    return Order(
        number=number,
        way=Way.REMOVE,
        shape=here.shape.name,
        pool=here.shape.node.pool,
        node_name=here.name,
        node_id=here.node.spec.node_id,
        why=going.why,
        ordered_ms=now_ms,
        due_ms=now_ms + max(60_000, here.shape.lead_ms),
        price_micro=here.shape.price_micro,
        changed_ms=now_ms,
        reference=past[-1].reference if past else "",
        closed=here.node.grantable,
    )

"""Whether a demand allows a placement that was chosen a while ago, such as a hold's.

What the engine places always is. What is left of the devices is not asked here, and wishes (spreading, preferring an
island) forbid nothing.
"""

from __future__ import annotations

from collections import Counter

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.reasons import RESTRICTED
from aliquot.coordinator.core.values.types import UNKNOWN, Demand, Placement, SlicePlan, Topology


def objection(engine: Engine, demand: Demand, placement: Placement) -> str:
    """What the demand does not allow of this placement, for people; empty: nothing."""
    inventory = engine.inventory
    if len(placement.members) != demand.gang_size:
        return f"it has {len(placement.members)} members, and {demand.gang_size} were asked for"
    for node_id, members in Counter(placement.node_ids).items():
        why = _of_node(inventory, demand, node_id, members)
        if why:
            return why
    why = "nothing of the pool serves it any more"
    for shape in engine.matcher.shapes(demand):
        members_on = zip(placement.node_ids, placement.members, strict=True)
        problems = (_of_member(inventory, demand, shape, node_id, plans) for node_id, plans in members_on)
        why = next((problem for problem in problems if problem), "")
        why = why or (_together(inventory, placement) if shape.apart else "")
        if not why:
            break
    return why


def _together(inventory: Inventory, placement: Placement) -> str:
    on_card: dict[str, int] = {}
    for member, plans in enumerate(placement.members):
        for plan in plans:
            card = inventory.device_record(plan.device_uuid).spec.card if inventory.has_device(plan.device_uuid) else ""
            if on_card.setdefault(card, member) != member:
                return f"members {on_card[card]} and {member} would be on one card (same_card allows that)"
    return ""


def _of_node(inventory: Inventory, demand: Demand, node_id: str, members: int) -> str:
    if not inventory.has_node(node_id):
        return f"node {node_id} is gone"
    node = inventory.node(node_id)
    if not node.grantable:
        return f"node {node.spec.name} accepts no grants"
    if demand.pool and node.spec.pool != demand.pool:
        return f"node {node.spec.name} is not in pool {demand.pool}"
    if (demand.node_ids and node_id not in demand.node_ids) or node_id in demand.avoid_node_ids:
        return f"node {node.spec.name} is one that the request avoids"
    if not set(demand.node_selector).issubset(node.spec.labels):
        return f"node {node.spec.name} does not have the labels asked for"
    if not node.may_take(demand, members):
        return f"node {node.spec.name} has too little CPU or memory left, or too many of its group"
    return ""


def _of_member(inventory: Inventory, demand: Demand, shape: Demand, node_id: str, plans: tuple[SlicePlan, ...]) -> str:
    if len({plan.device_uuid for plan in plans}) != shape.count:
        return f"{len(plans)} slices on devices of their own were not what was asked for"
    for plan in plans:
        if not inventory.has_device(plan.device_uuid) or plan.device_uuid in demand.avoid_device_uuids:
            return f"device {plan.device_uuid} is gone, or one that the request avoids"
        device = inventory.device_record(plan.device_uuid)
        if device.admits > demand.admitted_on:
            return f"device {plan.device_uuid} is one of those that {RESTRICTED[device.admits].why}"
        # Room was found for as much memory as the plan says: foreign processes that came since don't change its size.
        size = device.device_class.slice_of(shape) if device.gives(shape.min_tier) else None
        if (
            device.node_id != node_id
            or size is None
            or size[0] != plan.share_milli
            or shape.memory_bytes > plan.memory_bytes
        ):
            return f"device {plan.device_uuid} does not serve what was asked for"
    devices = [inventory.device_record(plan.device_uuid) for plan in plans]
    if len({device.class_id for device in devices}) > 1:
        return "its devices differ"
    islands = {device.spec.nvlink_island for device in devices}
    if shape.topology == Topology.REQUIRE_ISLAND and (len(islands) > 1 or UNKNOWN in islands):
        return "its devices are not of one island"
    return ""

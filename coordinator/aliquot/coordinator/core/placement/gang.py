"""Gangs: all members or none.

Whether a gang fits is known before anything is tried (`room.py`), so a refusal costs a few array operations. Then
members are placed one after another on trial, each seeing the ones before it, and every trial is undone before the
placement is returned. Members prefer one failure domain, the smallest that has room for all, unless they ask to be
spread: traffic between members is cheapest there, and the larger domains stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.picking import slice_on
from aliquot.coordinator.core.placement.placer import Chosen, MemberPlacer
from aliquot.coordinator.core.placement.room import listed_rows, members_per_node, members_per_row
from aliquot.coordinator.core.placement.scoring import NO_SCORE
from aliquot.coordinator.core.placement.shapes import Bools, Ints
from aliquot.coordinator.core.values.types import UNKNOWN, Demand, Placement, SlicePlan, Topology

TRIAL_GROUP = "\x00gang"
"""Affinity group of a gang on trial whose demand names none, so that its members still see one another."""


def place_gang(placer: MemberPlacer, demand: Demand, shape: Demand) -> Placement | None:
    """Place every member, or None. The inventory is as before on return."""
    inventory, shapes = placer.inventory, placer.shapes
    slot = placer.index.slot(shape)
    if placer.index.best(slot)[1] == NO_SCORE:
        return None  # there is no room for even one member: the most frequent refusal, and the cheapest to know
    if not demand.affinity_group:
        demand = msgspec.structs.replace(demand, affinity_group=TRIAL_GROUP)
    eligible = shapes.eligible_rows(slot) & listed_rows(inventory, demand)
    per_row = members_per_row(inventory, shapes, slot, eligible, avoid=demand.avoid_device_uuids)
    per_node = members_per_node(inventory, demand, shape, per_row)
    if int(per_node.sum()) < demand.gang_size:
        return None
    within, note = _smallest_domain(placer, demand, per_node)
    with inventory.trial():
        chosen: list[Chosen] = []
        for _ in range(demand.gang_size):
            found = placer.choose(demand, shape, within)
            if found is None:
                break
            hold_member(inventory, demand, found.node_id, found.slices, apart=shape.apart)
            chosen.append(found)
        else:
            return _placement(chosen, note)
    # A policy that fills devices one by one can corner members of several parts of devices each.
    with inventory.trial():
        chosen = []
        for row in np.flatnonzero(eligible if within is None else eligible & within).tolist():
            while len(chosen) < demand.gang_size:
                found = _balanced(inventory, demand, shape, row)
                if found is None:
                    break
                hold_member(inventory, demand, found.node_id, found.slices, apart=shape.apart)
                chosen.append(found)
        return _placement(chosen, note) if len(chosen) == demand.gang_size else None


def hold_member(
    inventory: Inventory, demand: Demand, node_id: str, slices: tuple[SlicePlan, ...], *, apart: bool
) -> None:
    """Hold what one member gets, so that the next ones see it; its cards are closed to them where members are apart."""
    for plan in slices:
        inventory.reserve(plan)
    inventory.reserve_member(node_id, demand)
    if apart:
        for uuid in on_cards_of(inventory, [plan.device_uuid for plan in slices]):
            inventory.withhold(uuid, TRIAL_GROUP)


def on_cards_of(inventory: Inventory, uuids: Iterable[str]) -> tuple[str, ...]:
    """Every device that is on the same card as one of these."""
    found: dict[str, None] = {}
    for uuid in uuids:
        if inventory.has_device(uuid):
            own = inventory.device_record(uuid)
            others = inventory.node(own.node_id).devices if own.spec.parent_uuid else (own,)
            found |= {other.spec.uuid: None for other in others if other.spec.card == own.spec.card}
    return tuple(found)


def _placement(chosen: list[Chosen], note: str) -> Placement:
    notes = [note] if note else []
    notes += sorted({member.note for member in chosen if member.note})
    return Placement(
        tuple(member.slices for member in chosen), tuple(member.node_id for member in chosen), "; ".join(notes)
    )


def _smallest_domain(placer: MemberPlacer, demand: Demand, per_node: Ints) -> tuple[Bools | None, str]:
    inventory = placer.inventory
    if demand.spread_domains or demand.topology == Topology.ANY or len(inventory.domains) < 2:
        return None, ""
    domain = inventory.table.domain[: len(per_node)]
    room = np.bincount(domain, weights=per_node, minlength=len(inventory.domains)).astype(np.int64)
    named = [d for d, name in enumerate(inventory.domains) if name and room[d] >= demand.gang_size]
    if not named:
        return None, "members in several failure domains: none has room for all"
    best = min(named, key=lambda d: (int(room[d]), d))
    return domain == best, f"all members in failure domain {inventory.domains[best]}"


def _balanced(inventory: Inventory, demand: Demand, shape: Demand, row: int) -> Chosen | None:
    """One member on the row's emptiest devices: reaches every count that `members_by_slots` promises."""
    table = inventory.table
    node = table.node_of_row[row]
    if node is None or not node.grantable or not node.may_take(demand):
        return None
    roomy: list[tuple[int, int, int, SlicePlan]] = []
    for device in table.devices_of_row[row]:
        plan = None if device.spec.uuid in demand.avoid_device_uuids else slice_on(device, shape)
        if plan is not None:
            by_memory = device.memory_left_bytes // max(plan.memory_bytes, 1)
            slots = min(device.share_left_milli // plan.share_milli, by_memory)
            roomy.append((-slots, device.col, device.spec.nvlink_island, plan))
    roomy.sort(key=lambda item: item[:2])
    if shape.topology == Topology.REQUIRE_ISLAND:
        islands = {island for _, _, island, _ in roomy if island != UNKNOWN}
        groups = [[item for item in roomy if item[2] == island] for island in sorted(islands)]
    else:
        groups = [roomy]
    enough = [group for group in groups if len(group) >= shape.count]
    if not enough:
        return None
    return Chosen(node.spec.node_id, tuple(item[3] for item in enough[0][: shape.count]), "")

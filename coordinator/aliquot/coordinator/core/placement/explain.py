"""Why a demand does not fit, and the least that would make it fit: computed only when somebody asks."""

from __future__ import annotations

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.matching import Matcher
from aliquot.coordinator.core.placement.obstacles import ClassObstacles, describe
from aliquot.coordinator.core.placement.reasons import OTHER_KIND, PERMANENT, Reason
from aliquot.coordinator.core.placement.room import room
from aliquot.coordinator.core.values.types import Demand, Missing, Shortfall


def possible(inventory: Inventory, matcher: Matcher, demand: Demand) -> bool:
    """Would the demand fit the pool were it empty, well and ready?"""
    return any(room(inventory, demand, shape, empty=True) >= demand.gang_size for shape in matcher.shapes(demand))


def shortfall(inventory: Inventory, matcher: Matcher, demand: Demand) -> Shortfall:
    """What is missing, by device class, the nearest first. A class that would serve it now says so with `FITS`."""
    matches = matcher.matches(demand)
    with inventory.trial() as opened:
        if opened.restricted:
            opened.admit(demand.admitted_on)
        looked_at = [ClassObstacles(opened, demand, class_id, matches) for class_id in range(len(inventory.classes))]
        found = [obstacles.first() for obstacles in looked_at if obstacles.devices]
    # Those that are easiest to remove first: passing before permanent, the larger class first.
    found.sort(key=lambda m: (m.reason in PERMANENT, m.reason in OTHER_KIND, -m.devices, m.device_class))
    missing = tuple(found)
    if not missing:
        missing = (Missing("any", Reason.NO_DEVICES.value, "no node has registered a device", "add a node"),)
    impossible = not possible(inventory, matcher, demand)
    return Shortfall(impossible, missing, _summary(demand, missing, impossible=impossible))


def _summary(demand: Demand, missing: tuple[Missing, ...], *, impossible: bool) -> str:
    words, nearest = describe(demand), missing[0]
    why = f"{nearest.device_class}: {nearest.detail}"
    why += f" ({nearest.smallest_change})" if nearest.smallest_change else ""
    one = demand.count == 1 or demand.gang_size > 1
    if impossible:
        return f"{words} can never fit this pool: {why}"
    if any(m.reason == Reason.FITS for m in missing):
        return f"{words} {'fits' if one else 'fit'} now"
    return f"{words} {'does' if one else 'do'} not fit now: {why}"

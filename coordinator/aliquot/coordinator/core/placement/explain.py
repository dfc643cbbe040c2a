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
    """What is missing, by device class. A class that would serve the demand now says so with `FITS`."""
    matches = matcher.matches(demand)
    with inventory.trial() as opened:
        if opened.restricted:
            opened.admit(demand.admitted_on)
        looked_at = [ClassObstacles(opened, demand, class_id, matches) for class_id in range(len(inventory.classes))]
        missing = tuple(obstacles.first() for obstacles in looked_at if obstacles.devices)
    if not missing:
        missing = (Missing("any", Reason.NO_DEVICES.value, "no node has registered a device", "add a node"),)
    impossible = not possible(inventory, matcher, demand)
    return Shortfall(impossible, missing, _summary(demand, missing, impossible=impossible))


def _summary(demand: Demand, missing: tuple[Missing, ...], *, impossible: bool) -> str:
    words = describe(demand)
    one = demand.count == 1 or demand.gang_size > 1
    if impossible:
        return f"{words} can never fit this pool: {_nearest(missing)}"
    if any(m.reason == Reason.FITS for m in missing):
        return f"{words} {'fits' if one else 'fit'} now"
    return f"{words} {'does' if one else 'do'} not fit now: {_nearest(missing)}"


def _nearest(missing: tuple[Missing, ...]) -> str:
    """The obstacle that is easiest to remove: passing before permanent, the larger class first."""
    nearest = min(missing, key=lambda m: (m.reason in PERMANENT, m.reason in OTHER_KIND, -m.devices, m.device_class))
    text = f"{nearest.device_class}: {nearest.detail}"
    return f"{text} ({nearest.smallest_change})" if nearest.smallest_change else text

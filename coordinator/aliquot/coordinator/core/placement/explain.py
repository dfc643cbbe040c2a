"""Why a demand does not fit, and the least that would make it fit: computed only when somebody asks."""

from __future__ import annotations

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.capacity import listed_rows, members_per_node, members_per_row
from aliquot.coordinator.core.placement.obstacles import ClassObstacles, describe
from aliquot.coordinator.core.placement.reasons import OTHER_KIND, PERMANENT, Reason
from aliquot.coordinator.core.placement.shapes import ShapeTable, shape_of
from aliquot.coordinator.core.types import Demand, Missing, Shortfall


def possible(inventory: Inventory, demand: Demand) -> bool:
    """Would the demand fit the pool were it empty, well and ready?"""
    return any(room_if_empty(inventory, demand, models) >= demand.gang_size for models in demand.models or ((),))


def room_if_empty(inventory: Inventory, demand: Demand, models: tuple[str, ...]) -> int:
    """Members that the empty pool could take on one model alternative."""
    shape = shape_of(demand, models)
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    eligible = shapes.eligible_rows(0) & listed_rows(inventory, demand, empty=True)
    per_row = members_per_row(inventory, shapes, 0, eligible, empty=True)
    return int(members_per_node(inventory, demand, shape, per_row, empty=True).sum())


def shortfall(inventory: Inventory, demand: Demand) -> Shortfall:
    """What is missing, by device class. A class that would serve the demand now says so with `FITS`."""
    looked_at = [ClassObstacles(inventory, demand, class_id) for class_id in range(len(inventory.classes))]
    missing = tuple(obstacles.first() for obstacles in looked_at if obstacles.devices)
    if not missing:
        missing = (Missing("any", Reason.NO_DEVICES.value, "no node has registered a device", "add a node"),)
    impossible = not possible(inventory, demand)
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

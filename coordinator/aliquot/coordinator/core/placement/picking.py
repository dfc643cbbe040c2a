"""Which devices of the chosen row a member gets: plain integers over a handful of records, after the arrays
have decided on the row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.values.types import UNKNOWN, Demand, SlicePlan, Topology

UTILISATION_STEP_MILLI = 334
"""Utilisation is compared in thirds (low, middle, high), so that noise does not scatter what was packed."""


def slice_on(device: DeviceRecord, shape: Demand) -> SlicePlan | None:
    """The slice that `shape` would take on a device now, or None if it does not fit."""
    size = device.slice_for(shape)
    if size is None or device.withheld_for or device.admits or not device.has_room(*size):
        return None
    return SlicePlan(device.node_id, device.spec.uuid, *size)


def busy_class(utilisation: Mapping[str, int], device: DeviceRecord) -> int:
    """0 low, 1 middle, 2 high utilisation."""
    return utilisation.get(device.spec.uuid, 0) // UTILISATION_STEP_MILLI


def pick(
    devices: Iterable[DeviceRecord],
    shape: Demand,
    *,
    avoid: Collection[str] = (),
    utilisation: Mapping[str, int] | None = None,
) -> tuple[tuple[SlicePlan, ...], str] | None:
    """`count` slices on distinct devices, least share left first, close together where the shape wants that; among
    equal ones the least busy, where `utilisation` says how busy they are (in thousandths, by device).

    Returns the slices and, where links were known and asked about, what was got; None if too few devices fit.
    """
    fitting: list[tuple[DeviceRecord, SlicePlan]] = []
    for device in devices:
        if device.spec.uuid not in avoid:
            plan = slice_on(device, shape)
            if plan is not None:
                fitting.append((device, plan))
    if len(fitting) < shape.count:
        return None
    busy = utilisation or {}
    fitting.sort(key=lambda item: (item[0].share_left_milli, busy_class(busy, item[0]), item[0].col))
    if shape.count == 1 or shape.topology == Topology.ANY:
        return tuple(plan for _, plan in fitting[: shape.count]), ""
    return _close_together(fitting, shape)


def _close_together(
    fitting: list[tuple[DeviceRecord, SlicePlan]], shape: Demand
) -> tuple[tuple[SlicePlan, ...], str] | None:
    """From the smallest NVLink island that has enough, else from one NUMA node, else from anywhere."""

    def smallest(group_of: Callable[[DeviceRecord], int]) -> list[SlicePlan] | None:
        groups: dict[int, list[SlicePlan]] = {}
        for device, plan in fitting:
            if group_of(device) != UNKNOWN:
                groups.setdefault(group_of(device), []).append(plan)
        enough = [(len(plans), group) for group, plans in groups.items() if len(plans) >= shape.count]
        return groups[min(enough)[1]] if enough else None

    plans = smallest(lambda device: device.spec.nvlink_island)
    if plans is not None:
        return tuple(plans[: shape.count]), f"{shape.count} devices in one island"
    if shape.topology == Topology.REQUIRE_ISLAND:
        return None
    note = ""
    if any(device.spec.nvlink_island != UNKNOWN for device, _ in fitting):
        note = f"{shape.count} devices across islands: no island had as many free"
    plans = smallest(lambda device: device.spec.numa_node)
    if plans is not None:
        return tuple(plans[: shape.count]), note or f"{shape.count} devices on one NUMA node"
    return tuple(plan for _, plan in fitting[: shape.count]), note

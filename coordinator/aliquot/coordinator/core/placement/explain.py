"""Why a demand does not fit, and the least that would make it fit.

Computed only when somebody asks, from the arrays and the same feasibility as placement, one device class at a time. For
each class the *first* obstacle is named in the order in which a user could remove it: what can never fit there, what the
request's own filters exclude, what is not ready, what is held.
"""

from __future__ import annotations

import enum

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.capacity import members_per_node, members_per_row, slots_per_device
from aliquot.coordinator.core.placement.shapes import Bools, ShapeTable, class_suits, shape_of
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI, Demand, Missing, Shortfall, Topology

GIB = 1 << 30


class Reason(enum.StrEnum):
    """Stable words for what is missing."""

    OTHER_MODEL = "OTHER_MODEL"
    OTHER_VENDOR = "OTHER_VENDOR"
    OTHER_PROFILE = "OTHER_PROFILE"
    OTHER_POOL = "OTHER_POOL"
    MEMORY_OVER_DEVICE = "MEMORY_OVER_DEVICE"
    TOO_FEW_DEVICES_ON_NODE = "TOO_FEW_DEVICES_ON_NODE"
    NO_ISLAND = "NO_ISLAND"
    SELECTOR = "SELECTOR"
    TIER = "TIER"
    NODE_LIST = "NODE_LIST"
    HOST_TOO_SMALL = "HOST_TOO_SMALL"
    GANG_OVER_POOL = "GANG_OVER_POOL"
    NOT_READY = "NOT_READY"
    UNAVAILABLE = "UNAVAILABLE"
    ANTI_AFFINITY = "ANTI_AFFINITY"
    SHARE_HELD = "SHARE_HELD"
    MEMORY_HELD = "MEMORY_HELD"
    HOST_HELD = "HOST_HELD"
    FRAGMENTED = "FRAGMENTED"
    GANG_TOO_LARGE_NOW = "GANG_TOO_LARGE_NOW"
    NO_DEVICES = "NO_DEVICES"
    FITS = "FITS"
    """Nothing is missing: it would be placed now."""


PERMANENT = frozenset(
    {
        Reason.OTHER_MODEL,
        Reason.OTHER_VENDOR,
        Reason.OTHER_PROFILE,
        Reason.OTHER_POOL,
        Reason.MEMORY_OVER_DEVICE,
        Reason.TOO_FEW_DEVICES_ON_NODE,
        Reason.NO_ISLAND,
        Reason.SELECTOR,
        Reason.TIER,
        Reason.NODE_LIST,
        Reason.HOST_TOO_SMALL,
        Reason.GANG_OVER_POOL,
        Reason.NO_DEVICES,
    }
)
"""Reasons that waiting does not remove."""


def possible(inventory: Inventory, demand: Demand) -> bool:
    """Would the demand fit the pool were it empty, well and ready?"""
    return any(_room(inventory, demand, models, empty=True) >= demand.gang_size for models in demand.models or ((),))


def shortfall(inventory: Inventory, demand: Demand) -> Shortfall:
    """What is missing, by device class. A demand that would fit now says so with `FITS`."""
    missing = tuple(
        _of_class(inventory, demand, class_id) for class_id in range(len(inventory.classes)) if _count(inventory, class_id)
    )
    impossible = not possible(inventory, demand)
    if not missing:
        missing = (Missing("any", Reason.NO_DEVICES, "no node has registered a device", "add a node"),)
    return Shortfall(impossible, missing, _summary(demand, missing, impossible))


def describe(demand: Demand) -> str:
    """The demand in a few words."""
    parts = []
    if demand.share_milli and demand.share_milli != WHOLE_SHARE_MILLI:
        parts.append(f"share {demand.share_milli / 1000:g}")
    if demand.memory_bytes:
        parts.append(_gib(demand.memory_bytes))
    what = " and ".join(parts) if parts else "whole"
    text = f"{demand.count} device{'s' if demand.count != 1 else ''} ({what})"
    return f"a gang of {demand.gang_size} × {text}" if demand.gang_size > 1 else text


def _room(inventory: Inventory, demand: Demand, models: tuple[str, ...], *, empty: bool) -> int:
    shape = shape_of(demand, models)
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    eligible = shapes.eligible_rows(0) & _listed(inventory, demand, empty=empty)
    per_row = members_per_row(inventory, shapes, 0, eligible, empty=empty)
    return int(members_per_node(inventory, demand, shape, per_row, empty=empty).sum())


def _listed(inventory: Inventory, demand: Demand, *, empty: bool = False) -> Bools:
    rows = inventory.table.rows
    listed: Bools = np.full(rows, not demand.node_ids, np.bool_)
    for node_ids, value in ((demand.node_ids, True), (() if empty else demand.avoid_node_ids, False)):
        for node_id in node_ids:
            if inventory.has_node(node_id):
                node = inventory.node(node_id)
                listed[node.first_row : node.first_row + node.row_count] = value
    return listed


def _count(inventory: Inventory, class_id: int) -> int:
    table = inventory.table
    return int(table.width[: table.rows][table.class_id[: table.rows] == class_id].sum())


def _of_class(inventory: Inventory, demand: Demand, class_id: int) -> Missing:
    """The first obstacle on one class."""
    device_class = inventory.classes[class_id]
    devices = _count(inventory, class_id)

    def missing(reason: Reason, detail: str, change: str = "") -> Missing:
        return Missing(device_class.label, reason.value, detail, change, devices)

    wanted = {model for models in demand.models for model in models}
    if wanted and device_class.model not in wanted:
        return missing(Reason.OTHER_MODEL, f"the request names {', '.join(sorted(wanted))}", f"allow {device_class.model}")
    if demand.vendor and device_class.vendor != demand.vendor:
        return missing(Reason.OTHER_VENDOR, f"the request is for {demand.vendor}", f"allow {device_class.vendor}")
    if device_class.mig_profile != demand.mig_profile:
        if demand.mig_profile:
            return missing(Reason.OTHER_PROFILE, f"not a {demand.mig_profile} instance", "ask without a MIG profile")
        return missing(
            Reason.OTHER_PROFILE, "MIG instances serve only who names their profile", f"ask for {device_class.mig_profile}"
        )
    models = next((m for m in demand.models if device_class.model in m), ())
    shape = shape_of(demand, (device_class.model,) if models else ())
    share, memory = inventory.resolve(shape, device_class)
    if not class_suits(shape, inventory, class_id):
        return missing(
            Reason.MEMORY_OVER_DEVICE,
            f"{_gib(memory)} on one device was asked for; these have {_gib(device_class.leasable_bytes)} to lease",
            f"ask for at most {_gib(device_class.leasable_bytes)} per device",
        )
    return _of_rows(inventory, demand, shape, class_id, share, memory, missing)


def _of_rows(inventory, demand, shape, class_id, share, memory, missing):  # type: ignore[no-untyped-def]
    table = inventory.table
    rows = table.rows
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    mine = table.class_id[:rows] == class_id
    if shape.pool:
        pool = inventory.pools.index(shape.pool) if shape.pool in inventory.pools else -1
        mine &= table.pool[:rows] == pool
        if not mine.any():
            return missing(Reason.OTHER_POOL, f"none in pool {shape.pool!r}", "ask in another pool")
    widest = int(table.width[:rows][mine].max(initial=0))
    if widest < shape.count:
        return missing(
            Reason.TOO_FEW_DEVICES_ON_NODE,
            f"{shape.count} on one node were asked for; no node has more than {widest}",
            f"ask for at most {widest} per member, or for a gang",
        )
    if shape.topology == Topology.REQUIRE_ISLAND and not _island_at_least(table, rows, mine, shape.count):
        return missing(
            Reason.NO_ISLAND, f"no NVLink island has {shape.count} of these devices", "prefer an island instead of requiring it"
        )
    eligible = shapes.eligible_rows(0) & mine
    if not eligible.any():
        reason = Reason.SELECTOR if shape.node_selector else Reason.TIER
        if reason is Reason.SELECTOR:
            text = ", ".join(f"{key}={value}" for key, value in shape.node_selector)
            return missing(reason, f"no node with these devices has the labels {text}", "drop the node selector")
        return missing(reason, "no agent of these devices can give the tier asked for", "ask for a lower tier")
    listed = eligible & _listed(inventory, demand)
    if not listed.any():
        return missing(Reason.NODE_LIST, "the request keeps to, or avoids, nodes so that none is left", "widen the node list")
    return _held(inventory, demand, shape, shapes, listed, share, memory, missing)


def _held(inventory, demand, shape, shapes, listed, share, memory, missing):  # type: ignore[no-untyped-def]
    """Obstacles that come and go."""
    table = inventory.table
    rows = table.rows
    empty_rows = members_per_row(inventory, shapes, 0, listed, empty=True)
    empty = int(members_per_node(inventory, demand, shape, empty_rows, empty=True).sum())
    if not empty:
        return missing(
            Reason.HOST_TOO_SMALL,
            f"no node has {shape.cpu_milli / 1000:g} CPUs and {_gib(shape.host_memory_bytes)} of memory",
            "ask for less CPU or memory",
        )
    if empty < demand.gang_size:
        return missing(
            Reason.GANG_OVER_POOL,
            f"{demand.gang_size} members were asked for; the empty pool has room for {empty}",
            f"ask for at most {empty} members",
        )
    now_rows = members_per_row(inventory, shapes, 0, listed)
    now = int(members_per_node(inventory, demand, shape, now_rows).sum())
    if now >= demand.gang_size:
        return missing(Reason.FITS, "it fits now")
    if now:
        return missing(
            Reason.GANG_TOO_LARGE_NOW,
            f"{now} of {demand.gang_size} members fit now",
            f"a gang of {now}, or {demand.gang_size - now} more places of {describe(shape)}",
        )
    ready = listed & table.grantable[:rows]
    if not ready.any():
        return missing(Reason.NOT_READY, "no node with these devices accepts grants now", "wait for a node to become ready")
    if not shape.count:
        return missing(Reason.HOST_HELD, "CPU or memory of every node is held", "ask for less CPU or memory")
    if now_rows.any():
        if not members_per_node(inventory, shape, shape, now_rows).any():
            return missing(Reason.HOST_HELD, "CPU or memory of every node that fits is held", "ask for less CPU or memory")
        return missing(
            Reason.ANTI_AFFINITY,
            f"every node that fits already has {demand.max_per_node} of group {demand.affinity_group!r}",
            f"allow {demand.max_per_node + 1} per node",
        )
    return _devices_held(inventory, shape, shapes, ready, share, memory, missing)


def _devices_held(inventory, shape, shapes, ready, share, memory, missing):  # type: ignore[no-untyped-def]
    table = inventory.table
    rows = table.rows
    left = np.where(ready[:, None], table.share_left[:rows], 0)
    memory_left = np.where(left > 0, table.memory_left[:rows], 0)
    slots = np.where(ready[:, None], slots_per_device(inventory, shapes, 0), 0)
    fitting = (slots > 0).sum(axis=1)
    best = int(fitting.max(initial=0))
    if best >= shape.count:
        if shape.topology == Topology.REQUIRE_ISLAND:
            return missing(
                Reason.FRAGMENTED,
                f"{best} devices of one node fit, but not {shape.count} of one NVLink island",
                "prefer an island instead of requiring it",
            )
        return missing(Reason.HOST_HELD, "CPU or memory of every node that fits is held", "ask for less CPU or memory")
    if best:
        return missing(
            Reason.FRAGMENTED,
            f"{int(fitting.sum())} devices fit, at most {best} on one node; {shape.count} on one node are needed",
            f"ask for {best} per member, or wait for {shape.count - best} more on one node",
        )
    if not (left > 0).any():
        usable = int((table.share_left[:rows][ready] > 0).sum())
        reason = Reason.SHARE_HELD if usable == 0 else Reason.UNAVAILABLE
        return missing(reason, "every device of these is fully held, sick or draining", "wait for a release")
    if share == WHOLE_SHARE_MILLI:
        top = int(left.max())
        return missing(
            Reason.SHARE_HELD,
            f"whole devices were asked for and each one is partly held; the emptiest has share {top / 1000:g} left",
            f"ask for share {top / 1000:g}",
        )
    by_share = left >= share
    if not by_share.any():
        top = int(left.max())
        return missing(
            Reason.SHARE_HELD,
            f"share {share / 1000:g} was asked for; the most any device has left is {top / 1000:g}",
            f"ask for share {top / 1000:g}, or wait until {(share - top) / 1000:g} more is released there",
        )
    top = int(memory_left[by_share].max())
    return missing(
        Reason.MEMORY_HELD,
        f"{_gib(memory)} was asked for; devices with the share left have at most {_gib(max(top, 0))}",
        f"ask for {_gib(max(top, 0))}, or wait until {_gib(memory - top)} more is released there",
    )


def _island_at_least(table, rows, mine, count):  # type: ignore[no-untyped-def]
    return any(
        ((table.island[:rows][mine] == island).sum(axis=1) >= count).any()
        for island in range(int(table.islands[:rows][mine].max(initial=0)))
    )


def _summary(demand: Demand, missing: tuple[Missing, ...], impossible: bool) -> str:
    words = describe(demand)
    if impossible:
        return f"{words} can never fit this pool: " + _nearest(missing)
    if any(m.reason == Reason.FITS for m in missing):
        return f"{words} fits now"
    return f"{words} does not fit now: " + _nearest(missing)


def _nearest(missing: tuple[Missing, ...]) -> str:
    """The obstacle that is easiest to remove: a temporary one before a permanent one, the larger class first."""
    other = {Reason.OTHER_MODEL, Reason.OTHER_VENDOR, Reason.OTHER_PROFILE}
    nearest = min(missing, key=lambda m: (m.reason in PERMANENT, m.reason in other, -m.devices, m.device_class))
    text = f"{nearest.device_class}: {nearest.detail}"
    return f"{text} ({nearest.smallest_change})" if nearest.smallest_change else text


def _gib(memory_bytes: int) -> str:
    return f"{memory_bytes / GIB:.1f}Gi"

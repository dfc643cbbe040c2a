"""Which of these nodes could take one member of a demand, how they compare, and what stands against the others.

Whether a node fits is read off the engine's scores, as when it places; what stands against one is told from the arrays
in one pass over the rows of those that were asked about, and only for those that don't fit. 5,000 nodes take about
10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.engine import Engine
from aliquot.coordinator.core.placement.gang import TRIAL_GROUP
from aliquot.coordinator.core.placement.matching import either
from aliquot.coordinator.core.placement.obstacles import ClassObstacles, gib, members_of_any
from aliquot.coordinator.core.placement.reasons import RESTRICTIONS, Reason
from aliquot.coordinator.core.placement.room import listed_rows, rooms_of, slots_per_device
from aliquot.coordinator.core.placement.scoring import NO_SCORE
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable, shape_of
from aliquot.coordinator.core.values.types import SERVE_LABELS, UNKNOWN, WHOLE_SHARE_MILLI, Demand, Topology

_NEARER = (
    Reason.NODE_UNKNOWN,
    Reason.NO_DEVICES,
    Reason.OTHER_VENDOR,
    Reason.OTHER_MODEL,
    Reason.OTHER_PROFILE,
    Reason.WHOLE_ONLY,
    Reason.MEMORY_OVER_DEVICE,
    Reason.OTHER_POOL,
    Reason.TOO_FEW_DEVICES_ON_NODE,
    Reason.NO_ISLAND,
    Reason.SELECTOR,
    Reason.SERVE,
    Reason.TIER,
    Reason.NODE_LIST,
    Reason.HOST_TOO_SMALL,
    Reason.NOT_READY,
    Reason.ANTI_AFFINITY,
    Reason.UNAVAILABLE,
    Reason.SHARE_HELD,
    Reason.MEMORY_HELD,
    Reason.FRAGMENTED,
    Reason.HOST_HELD,
    Reason.WITHHELD,
)
"""Of several sorts of devices on a node the one counts that is nearest to fitting: the later here, the nearer."""
_CODE = {reason: code for code, reason in enumerate(_NEARER)}
_DEVICES_SAY = frozenset(_NEARER[_CODE[Reason.UNAVAILABLE] :])
"""What depends on which devices of the node are meant."""


class NodeFit(NamedTuple):
    """What there is to say of one node."""

    node_id: str
    reason: Reason
    """`FITS`, or the first obstacle."""
    detail: str
    """The obstacle in a few words; empty where it fits."""
    score: int
    """How good the node is, from 1 on: equals have the same, the best the most. 0: it does not fit. To be compared
    within one answer."""
    members: int = 0
    """How many such members it could take, one beside another; as the shape that is preferred there."""


def about_devices(reason: Reason) -> bool:
    """Whether an obstacle depends on which devices of the node are meant."""
    return reason in _DEVICES_SAY or reason in RESTRICTIONS


def survey(
    engine: Engine,
    demand: Demand,
    node_ids: Sequence[str],
    kept: Collection[str] = (),
    why_closed: Callable[[str], tuple[Reason, str]] | None = None,
) -> tuple[NodeFit, ...]:
    """What there is to say of each of these nodes, in their order. `kept`: devices that are kept for somebody.
    `why_closed` knows more of a node that accepts no grants.
    """
    has_node = engine.inventory.has_node
    known = [node_id for node_id in dict.fromkeys(node_ids) if has_node(node_id)]
    found = _known_nodes(engine, replace(demand, spread_domains=False), known, kept, why_closed) if known else []
    if len(found) == len(node_ids):
        return tuple(found)
    of = {fit.node_id: fit for fit in found}
    unknown = NodeFit("", Reason.NODE_UNKNOWN, "there is no such node", 0)
    return tuple(of.get(node_id) or unknown._replace(node_id=node_id) for node_id in node_ids)


def _known_nodes(
    engine: Engine,
    demand: Demand,
    node_ids: list[str],
    kept: Collection[str],
    why_closed: Callable[[str], tuple[Reason, str]] | None,
) -> list[NodeFit]:
    spans = [(node.first_row, node.row_count) for node in map(engine.inventory.node, node_ids)]
    first, counts = np.array(spans, np.int64).T
    rows, starts = _rows(first, counts)
    scores, members = _scores(engine, demand, rows, starts)
    reasons, details = [Reason.FITS] * len(node_ids), [""] * len(node_ids)
    missing: Ints = np.flatnonzero(scores == 0)
    if len(missing):
        rows, starts = _rows(first[missing], counts[missing])
        obstacles = _Obstacles(engine, demand, rows, kept)
        for number, (reason, detail) in zip(missing.tolist(), obstacles.nearest(starts), strict=True):
            if why_closed is not None and reason is Reason.NOT_READY:
                reasons[number], details[number] = why_closed(node_ids[number])
            else:
                reasons[number], details[number] = reason, detail
    return list(map(NodeFit._make, zip(node_ids, reasons, details, scores.tolist(), members.tolist(), strict=True)))


def _rows(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """(the rows of nodes with so many from these on, where each node's begin among them)."""
    starts: Ints = np.cumsum(counts) - counts
    return np.repeat(first - starts, counts) + np.arange(int(counts.sum())), starts


def _scores(engine: Engine, demand: Demand, rows: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """([node] 0 where it does not fit, else its place in the order of those that do: models preferred by the demand
    first, then what the policy makes of them; [node] how many members it could take).
    """
    alternative: Ints = np.full(len(starts), UNKNOWN, np.int64)
    best: Ints = np.full(len(starts), NO_SCORE, np.int64)
    members: Ints = np.zeros(len(starts), np.int64)
    for number, shape in enumerate(engine.matcher.shapes(demand)):
        of_rows = engine.scores(demand, shape)[rows]
        scores = np.maximum.reduceat(of_rows, starts)
        new = (scores > NO_SCORE) & (alternative == UNKNOWN)
        if not new.any():
            continue
        alternative[new], best[new] = number, scores[new]
        members[new] = rooms_of(engine.inventory, demand, shape, rows, starts, of_rows > NO_SCORE)[new]
    ranks: Ints = np.zeros(len(starts), np.int64)
    fits = np.flatnonzero(alternative != UNKNOWN)
    if len(fits):
        order = fits[np.lexsort((best[fits], -alternative[fits]))]
        rises = (np.diff(best[order]) != 0) | (np.diff(alternative[order]) != 0)
        ranks[order] = 1 + np.concatenate(([0], np.cumsum(rises)))
    return ranks, members


class _Obstacles:
    """The first obstacle on each of these rows."""

    def __init__(self, engine: Engine, demand: Demand, rows: Ints, kept: Collection[str]) -> None:
        self._inventory, self._demand, self._rows = engine.inventory, demand, rows
        table = engine.inventory.table
        self._class = table.class_id[rows]
        self._codes: Ints = np.full(len(rows), _CODE[Reason.NO_DEVICES], np.int64)
        self._numbers: Ints = np.zeros(len(rows), np.int64)
        """What the detail names: the share or memory left, how many fit."""
        self._details: dict[tuple[int, int, int], tuple[Reason, str]] = {}
        self._of_class: dict[int, ClassObstacles] = {}
        self._kinds: dict[int, str] = {}
        shapes: dict[Demand, list[int]] = {}
        if demand.count:
            matches = engine.matcher.matches(demand)
            for class_id in np.unique(self._class[self._class >= 0]).tolist():
                looked_at = self._of_class[class_id] = ClassObstacles(engine.inventory, demand, class_id, matches)
                kind = looked_at.kind()
                if kind is None and matches and not (looked_at.shape.mig_profile or either(demand)):
                    self._kinds[class_id] = "MIG instances serve it here"
                    self._codes[self._class == class_id] = _CODE[Reason.OTHER_PROFILE]
                elif kind is None:
                    shapes.setdefault(looked_at.shape, []).append(class_id)
                else:
                    self._kinds[class_id] = kind.detail
                    self._codes[self._class == class_id] = _CODE[Reason(kind.reason)]
        else:
            shapes[shape_of(demand, ())] = [UNKNOWN, *range(len(engine.inventory.classes))]
        listed = listed_rows(engine.inventory, demand)[rows] if shapes else np.zeros(0, np.bool_)
        for shape, classes in shapes.items():
            self._look(shape, np.flatnonzero(np.isin(self._class, classes)), listed)
        self._keep(kept)

    def nearest(self, starts: Ints) -> Iterable[tuple[Reason, str]]:
        """For each node, whose rows begin there."""
        numbered = (self._codes << 32) + np.arange(len(self._rows))
        nearest = np.maximum.reduceat(numbered, starts) & ((1 << 32) - 1)
        keys = zip(
            self._codes[nearest].tolist(), self._class[nearest].tolist(), self._numbers[nearest].tolist(), strict=True
        )
        for key in keys:
            known = self._details.get(key)
            if known is None:
                known = self._details[key] = (_NEARER[key[0]], self._detail(*key))
            yield known

    def _look(self, shape: Demand, at: Ints, listed: Bools) -> None:
        """Rows at these positions, whose devices are of the right kind; the last mask that holds is the first obstacle,
        so they stand in the reverse of the order in which one would take them out of the way.
        """
        inventory, demand = self._inventory, self._demand
        table, rows = inventory.table, self._rows[at]
        codes: Ints = np.full(len(at), _CODE[Reason.HOST_HELD], np.int64)
        if shape.count:
            codes = self._devices(shape, at)
        full = [inventory.node(node_id).first_row for node_id in self._crowded()]
        crowded: Bools = np.zeros(len(at), np.bool_)
        if full:
            crowded = np.isin(_first_rows(inventory, rows), full)
        masks: list[tuple[Reason, Bools]] = [
            (Reason.ANTI_AFFINITY, crowded),
            (Reason.NOT_READY, ~table.grantable[rows]),
            (Reason.HOST_TOO_SMALL, _less(table.cpu_capacity[rows], shape.cpu_milli)),
            (Reason.HOST_TOO_SMALL, _less(table.host_capacity[rows], shape.host_memory_bytes)),
            (Reason.NODE_LIST, ~listed[at]),
            (Reason.TIER, (table.tier[rows] != UNKNOWN) & (table.tier[rows] < shape.min_tier)),
        ]
        for reason, wanted in _labels(shape):
            nodes = [table.node_of_row[row] for row in rows.tolist()]
            has = [node is not None and wanted.issubset(node.spec.labels) for node in nodes]
            masks.append((reason, ~np.array(has, np.bool_)))
        if shape.topology == Topology.REQUIRE_ISLAND:
            islands = range(int(table.islands[rows].max(initial=0)))
            largest: Ints = np.zeros(len(at), np.int64)
            for island in islands:
                largest = np.maximum(largest, (table.island[rows] == island).sum(axis=1))
            masks.append((Reason.NO_ISLAND, largest < shape.count))
        masks.append((Reason.TOO_FEW_DEVICES_ON_NODE, table.width[rows] < shape.count))
        if demand.pool:
            pool = inventory.pools.index(demand.pool) if demand.pool in inventory.pools else UNKNOWN
            masks.append((Reason.OTHER_POOL, table.pool[rows] != pool))
        for reason, mask in masks:
            codes[mask] = _CODE[reason]
        self._codes[at] = codes

    def _crowded(self) -> list[str]:
        """Nodes that have as many of the group as may be on one."""
        demand = self._demand
        group = self._inventory.groups.get(demand.affinity_group, {}) if demand.max_per_node else {}
        return [node_id for node_id, members in group.items() if members >= demand.max_per_node]

    def _devices(self, shape: Demand, at: Ints) -> Ints:
        """Obstacles of quantity."""
        inventory, table, rows = self._inventory, self._inventory.table, self._rows[at]
        shapes = ShapeTable(inventory)
        shapes.put(0, shape)
        slots = slots_per_device(inventory, shapes, 0, rows=rows)
        for uuid in self._demand.avoid_device_uuids:
            if inventory.has_device(uuid):
                device = inventory.device_record(uuid)
                slots[rows == device.row, device.col] = 0
        fitting = (slots > 0).sum(axis=1)
        left = table.share_left[rows]
        share = shapes.share[table.class_id[rows], 0]
        top = left.max(axis=1)
        most = np.where(left >= share[:, None], table.memory_left[rows], 0).max(axis=1)
        codes = np.select(
            [fitting >= shape.count, fitting > 0, top == 0, top < share],
            [_CODE[r] for r in (Reason.HOST_HELD, Reason.FRAGMENTED, Reason.UNAVAILABLE, Reason.SHARE_HELD)],
            _CODE[Reason.MEMORY_HELD],
        )
        if shape.topology == Topology.REQUIRE_ISLAND and members_of_any(slots, shape.count):
            apart = (fitting >= shape.count) & ~_together(table.island[rows], slots, shape.count)
            codes[apart] = _CODE[Reason.FRAGMENTED]
        number = np.select([fitting > 0, top < share], [fitting, top], np.maximum(most, 0))
        self._numbers[at] = np.where(codes == _CODE[Reason.HOST_HELD], 0, number)
        return codes

    def _keep(self, kept: Collection[str]) -> None:
        """Rows that would fit if nothing were kept there."""
        if not kept or not self._demand.count:
            return
        inventory = self._inventory
        positions = {row: at for at, row in enumerate(self._rows.tolist())}
        held = {inventory.device_record(uuid).row for uuid in kept if inventory.has_device(uuid)}
        least = _CODE[Reason.UNAVAILABLE]
        for row in held & positions.keys():
            at = positions[row]
            if self._codes[at] < least:
                continue
            shape = self._of_class[int(self._class[at])].shape
            sizes = [(device, device.slice_for(shape)) for device in inventory.table.devices_of_row[row]]
            fitting = [device for device, size in sizes if size is not None and device.has_room(*size)]
            if len(fitting) >= shape.count and any(device.withheld_for for device in fitting):
                self._codes[at], self._numbers[at] = _CODE[Reason.WITHHELD], 0

    def _detail(self, code: int, class_id: int, number: int) -> str:
        demand, reason = self._demand, _NEARER[code]
        if class_id in self._kinds:
            return self._kinds[class_id]
        if reason in _WORDS:
            return _WORDS[reason]
        if reason is Reason.SHARE_HELD:
            share, _ = self._inventory.classes[class_id].size_of(self._of_class[class_id].shape)
            what = "a whole device was" if share == WHOLE_SHARE_MILLI else f"share {share / 1000:g} was"
            return f"{what} asked for; the most any device has left is {number / 1000:g}"
        if reason is Reason.MEMORY_HELD:
            _, memory = self._inventory.classes[class_id].size_of(self._of_class[class_id].shape)
            return f"{gib(memory)} was asked for; devices with the share left have at most {gib(number)}"
        if reason is Reason.FRAGMENTED:
            close = " in one island" if demand.topology == Topology.REQUIRE_ISLAND else ""
            return f"{number} devices fit, not {demand.count}{close}"
        if reason is Reason.TOO_FEW_DEVICES_ON_NODE:
            return f"it has fewer than {demand.count} such devices"
        if reason is Reason.ANTI_AFFINITY:
            group = "this gang" if demand.affinity_group == TRIAL_GROUP else f"group {demand.affinity_group!r}"
            return f"it has {demand.max_per_node} of {group} already"
        return f"it is not in pool {demand.pool!r}"


_WORDS = {
    Reason.NO_DEVICES: "it has no devices",
    Reason.NO_ISLAND: "no island of it has so many devices",
    Reason.SERVE: "its agent can't serve leases so",
    Reason.SELECTOR: "it does not have the labels asked for",
    Reason.TIER: "its agent can't give the tier asked for",
    Reason.NODE_LIST: "the request avoids it, or keeps to others",
    Reason.HOST_TOO_SMALL: "its CPU or memory would never be enough",
    Reason.NOT_READY: "it accepts no grants now",
    Reason.UNAVAILABLE: "every device is fully held, unhealthy or draining",
    Reason.HOST_HELD: "its CPU or memory is held",
    Reason.WITHHELD: "what is free is kept for somebody else",
}


def _labels(shape: Demand) -> Iterator[tuple[Reason, frozenset[tuple[str, str]]]]:
    """The labels that a node must have, and what it means that it does not have them."""
    serves = frozenset(label for label in shape.node_selector if label[0].startswith(SERVE_LABELS))
    others = frozenset(shape.node_selector) - serves
    for reason, wanted in ((Reason.SERVE, serves), (Reason.SELECTOR, others)):
        if wanted:
            yield reason, wanted


def _less(capacity: Ints, wanted: int) -> Bools:
    """[row] where it is known to be less than what is wanted."""
    return (capacity >= 0) & (capacity < wanted)


def _first_rows(inventory: Inventory, rows: Ints) -> Ints:
    """[row] the first row of its node."""
    table = inventory.table
    marks = np.where(table.first_of_node[: table.rows], np.arange(table.rows), 0)
    firsts: Ints = np.maximum.accumulate(marks)[rows]
    return firsts


def _together(islands: Ints, slots: Ints, count: int) -> Bools:
    """[row] whether so many devices with a slot are of one island."""
    found: Bools = np.zeros(len(slots), np.bool_)
    for island in range(int(islands.max(initial=UNKNOWN)) + 1):
        found |= ((islands == island) & (slots > 0)).sum(axis=1) >= count
    return found

"""One member of a demand: the row by the index and the request's own filters, then the devices.

The filters (nodes and devices to avoid or keep to, anti-affinity, spreading) differ from request to request,
so they are laid over a copy of the shape's cached scores rather than cached themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.placement.index import BLOCK, ScoreIndex
from aliquot.coordinator.core.placement.picking import busy_class, pick, slice_on
from aliquot.coordinator.core.placement.scoring import NO_SCORE, scores_of
from aliquot.coordinator.core.placement.shapes import Bools, Ints
from aliquot.coordinator.core.values.types import Demand, SlicePlan

AVOIDED = "\x00avoided"
"""The owner for whom devices that a request avoids are withheld on trial."""


class Chosen(NamedTuple):
    """Where one member goes."""

    node_id: str
    slices: tuple[SlicePlan, ...]
    note: str


class MemberPlacer:
    """Chooses for one inventory, policy and index."""

    def __init__(self, index: ScoreIndex, utilisation: Mapping[str, int]) -> None:
        """`utilisation`: how busy devices are, in thousandths, as far as it was measured."""
        self.index = index
        self.inventory, self.policy, self.shapes = index.scorer.inventory, index.scorer.policy, index.scorer.shapes
        self.utilisation = utilisation

    def choose(self, demand: Demand, shape: Demand, within: Bools | None = None) -> Chosen | None:
        """The best place for one member of `demand`, or None. `within`: only these rows."""
        slot = self.index.slot(shape)
        if within is not None or _has_filters(demand):
            scores = self._filtered(demand, slot, within)
            row = int(scores.argmax()) if len(scores) else 0
            score = int(scores[row]) if len(scores) else NO_SCORE
        else:
            row, score = self.index.best(slot)
            scores = None
        if score == NO_SCORE:
            return None
        if self.utilisation:
            row = self._least_busy(slot, row, score, scores)
        return self._on_row(demand, shape, slot, row)

    def scores(self, demand: Demand, shape: Demand) -> Ints:
        """[row] how good each is for one member; `NO_SCORE` where it does not fit or is filtered out."""
        return self._filtered(demand, self.index.slot(shape), None)

    def _filtered(self, demand: Demand, slot: int, within: Bools | None) -> Ints:
        inventory, table = self.inventory, self.inventory.table
        scores = self.index.column(slot)
        if within is not None:
            scores[~within] = NO_SCORE
        if demand.node_ids:
            keep: Bools = np.zeros(len(scores), np.bool_)
            for node_id in demand.node_ids:
                if inventory.has_node(node_id):
                    keep[_rows(inventory, node_id)] = True
            scores[~keep] = NO_SCORE
        for node_id in demand.avoid_node_ids:
            if inventory.has_node(node_id):
                scores[_rows(inventory, node_id)] = NO_SCORE
        group = inventory.groups.get(demand.affinity_group, {})
        if demand.max_per_node:
            for node_id, members in group.items():
                if members >= demand.max_per_node:
                    scores[_rows(inventory, node_id)] = NO_SCORE
        if demand.avoid_device_uuids:
            self._score_without(demand, slot, scores)
        if demand.spread_domains and (scores > NO_SCORE).any():
            members_by_domain = np.zeros(len(inventory.domains), np.int64)
            for node_id, members in group.items():
                members_by_domain[table.domain[inventory.node(node_id).first_row]] += members
            crowding = np.where(
                scores > NO_SCORE, members_by_domain[table.domain[: len(scores)]], np.iinfo(np.int64).max
            )
            scores[crowding > crowding.min()] = NO_SCORE
        return scores

    def _score_without(self, demand: Demand, slot: int, scores: Ints) -> None:
        """Score the rows of avoided devices as if those were kept for somebody."""
        known = [uuid for uuid in demand.avoid_device_uuids if self.inventory.has_device(uuid)]
        of_row = {uuid: self.inventory.device_record(uuid).row for uuid in known}
        rows = np.array(sorted({row for row in of_row.values() if scores[row] > NO_SCORE}), np.int64)
        if not len(rows):
            return
        with self.inventory.trial() as inventory:
            for uuid in known:
                inventory.withhold(uuid, AVOIDED)
            eligible: Bools = np.ones((len(rows), 1), np.bool_)
            scores[rows] = scores_of(self.index.scorer.keys(rows, slice(slot, slot + 1), eligible)[:, 0])

    def _least_busy(self, slot: int, row: int, score: int, scores: Ints | None) -> int:
        """Among the rows as good as `row` (in its block), the least busy one; the lowest of equals."""
        first = row // BLOCK * BLOCK
        block = (self.index.column(slot) if scores is None else scores)[first : first + BLOCK]
        equals = np.flatnonzero(block == score)
        if len(equals) < 2:
            return row
        table = self.inventory.table
        return min(
            (first + int(offset) for offset in equals),
            key=lambda r: (min((busy_class(self.utilisation, d) for d in table.devices_of_row[r]), default=0), r),
        )

    def _on_row(self, demand: Demand, shape: Demand, slot: int, row: int) -> Chosen | None:
        table = self.inventory.table
        node = table.node_of_row[row]
        assert node is not None
        node_id = node.spec.node_id
        if not shape.count:
            return Chosen(node_id, (), "")
        devices = table.devices_of_row[row]
        if shape.count == 1 and self.policy.per_device and not demand.avoid_device_uuids:
            best = devices[self.index.device_column(row, slot)]
            if self.utilisation:
                best = _least_busy_twin(self.utilisation, devices, best)
            plan = slice_on(best, shape)
            assert plan is not None, "a cached score said that the slice fits"
            return Chosen(node_id, (plan,), "")
        picked = pick(devices, shape, avoid=demand.avoid_device_uuids, utilisation=self.utilisation or None)
        assert picked is not None, "a cached score said that the member fits"
        return Chosen(node_id, *picked)


def _has_filters(demand: Demand) -> bool:
    return bool(
        demand.node_ids
        or demand.avoid_node_ids
        or demand.avoid_device_uuids
        or demand.max_per_node
        or demand.spread_domains
    )


def _rows(inventory: Inventory, node_id: str) -> slice:
    node = inventory.node(node_id)
    return slice(node.first_row, node.first_row + node.row_count)


def _least_busy_twin(
    utilisation: Mapping[str, int], devices: tuple[DeviceRecord, ...], best: DeviceRecord
) -> DeviceRecord:
    """Of the devices in the same state as `best`, the least busy one; the lowest of equals."""
    state = (best.share_left_milli, best.memory_left_bytes)
    twins = [d for d in devices if (d.share_left_milli, d.memory_left_bytes) == state]
    return min(twins, key=lambda d: (busy_class(utilisation, d), d.col))

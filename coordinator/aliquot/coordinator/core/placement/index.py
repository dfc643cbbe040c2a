"""Cached scores: which row is best for a shape, kept up to date row by row.

`keys[row, slot]` holds every shape's score of every row; `block_keys[block, slot]` the best of each
block of `BLOCK` (32) rows. A change to a row scores that row again for all shapes and takes the maximum of its block; a
question looks at one number a block, and then at one block. A rare shape costs what a common one costs.

A shape never seen, or one pushed out by 256 others, costs one full scan.
"""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.accelerated import Accelerator, kernel
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import NEVER, Scorer, column_of, scores_of
from aliquot.coordinator.core.placement.shapes import SHAPES_MAX, Bools, Ints
from aliquot.coordinator.core.values.types import Demand

BLOCK = 32
BATCH_PAIRS = 4096
"""Pairs of (row, shape) scored at once when many rows changed: arrays that stay in the cache."""


class ScoreIndex:
    """Answers which rows are how good for a shape."""

    def __init__(self, scorer: Scorer, *, compiled: bool = True) -> None:
        """`compiled` False keeps to NumPy even once compiled scores were loaded."""
        self.scorer = scorer
        self.allocations = 0
        self.passes = 0
        """How often rows were scored: whether compiling the scoring would pay."""
        self._compiled = compiled and type(scorer.policy) is Price
        self._accelerator: Accelerator | None = None
        self._inventory: Inventory = scorer.inventory
        self._position = 0
        self._layout = -1
        self._structure = -1
        self._policy_version = scorer.policy.version
        self._slots_capacity = 8
        self._allocate(0)
        self._fresh: list[bool] = []
        self._used_at: list[int] = []
        self._clock = 0

    def _allocate(self, rows: int) -> None:
        blocks = -(-max(rows, 1) // BLOCK)
        blocks += blocks // 4 + 1
        self._rows_capacity = blocks * BLOCK
        slots = self._slots_capacity
        self.keys: Ints = np.full((self._rows_capacity, slots), NEVER, np.int64)
        self.eligible: Bools = np.zeros((self._rows_capacity, slots), np.bool_)
        self.block_keys: Ints = np.full((blocks, slots), NEVER, np.int64)
        self.allocations += 1

    @property
    def seen(self) -> int:
        """The changes of the inventory (`ChangeLog.end`) that its scores include."""
        return self._position

    # -- the questions ---------------------------------------------------------------------------------------

    def slot(self, shape: Demand) -> int:
        """The slot of a shape, brought up to date; valid until the inventory changes."""
        self._sync()
        shapes = self.scorer.shapes
        slot = shapes.slots.get(shape, -1)
        self._clock += 1
        if slot < 0:
            slot = self._make_room()
            shapes.put(slot, shape)
            self._fresh[slot] = False
        if not self._fresh[slot]:
            self._scan(slot)
        self._used_at[slot] = self._clock
        return slot

    def best(self, slot: int) -> tuple[int, int]:
        """(row, score) of the best row, the lowest of equals; `NO_SCORE` if none fits."""
        block = int(scores_of(self.block_keys[:, slot]).argmax())
        first = block * BLOCK
        scores = scores_of(self.keys[first : first + BLOCK, slot])
        offset = int(scores.argmax())
        return first + offset, int(scores[offset])

    def column(self, slot: int) -> Ints:
        """A copy of the scores of all rows."""
        return scores_of(self.keys[: self._inventory.table.rows, slot])

    def device_column(self, row: int, slot: int) -> int:
        """The best device of a row, for policies that score devices."""
        return column_of(int(self.keys[row, slot]))

    # -- keeping up ------------------------------------------------------------------------------------------

    def _make_room(self) -> int:
        """The slot for a new shape: the next free one, or that of the shape not asked for the longest."""
        used = len(self._fresh)
        if used >= SHAPES_MAX:
            return min(range(used), key=self._used_at.__getitem__)
        self._fresh.append(False)
        self._used_at.append(0)
        if used >= self._slots_capacity:
            old = self._slots_capacity
            self._slots_capacity = min(old * 2, SHAPES_MAX)
            for name in ("keys", "eligible", "block_keys"):
                array = getattr(self, name)
                grown = np.zeros((array.shape[0], self._slots_capacity), array.dtype)
                grown[:, :old] = array
                setattr(self, name, grown)
            self.keys[:, old:] = NEVER
            self.block_keys[:, old:] = NEVER
            self.allocations += 1
        return used

    def _sync(self) -> None:
        """Score again what changed since the last question."""
        inventory = self._inventory
        end = inventory.changes.end
        changed = inventory.changes.since(self._position)
        policy_version = self.scorer.policy.version
        if inventory.layout_version != self._layout or changed is None or policy_version != self._policy_version:
            self._restart(end)
            return
        if inventory.structure_version != self._structure:
            self._restructure()
        if end == self._position:
            return
        self._position = end
        self._update(sorted(set(changed)))

    def _restart(self, end: int) -> None:
        """Forget every score; shapes are scanned again when they are next asked for."""
        inventory = self._inventory
        self.scorer.sync()
        self._allocate(inventory.table.rows)
        self._fresh = [False] * len(self._fresh)
        self._layout, self._structure = inventory.layout_version, inventory.structure_version
        self._policy_version = self.scorer.policy.version
        self._position = end

    def _restructure(self) -> None:
        """Nodes came or were described anew: which rows suit which shape may have changed."""
        inventory, scorer = self._inventory, self.scorer
        moved = scorer.sync()
        rows = inventory.table.rows
        if moved or rows > self._rows_capacity:
            self._restart(inventory.changes.end)
            return
        for slot, fresh in enumerate(self._fresh):
            if fresh:
                self.eligible[:rows, slot] = scorer.shapes.eligible_rows(slot)
        self._structure = inventory.structure_version

    def _score_compiled(self, rows: list[int] | None, n_rows: int, first_slot: int, end_slot: int) -> bool:
        """Score by the kernel; False where there is none (yet)."""
        self.passes += 1
        if self._accelerator is None:
            loaded = kernel() if self._compiled else None
            if loaded is None:
                return False
            policy = self.scorer.policy
            assert isinstance(policy, Price)
            self._accelerator = Accelerator(loaded, self.scorer, policy, BLOCK)
        return self._accelerator.score(self, rows, n_rows, first_slot, end_slot)

    def _scan(self, slot: int) -> None:
        rows = self._inventory.table.rows
        eligible = self.scorer.shapes.eligible_rows(slot)
        self.eligible[:rows, slot] = eligible
        self.keys[rows:, slot] = NEVER
        self._fresh[slot] = True
        if self._score_compiled(None, rows, slot, slot + 1):
            return
        self.keys[:rows, slot] = scan_shape(self.scorer, slot, eligible)
        self.block_keys[:, slot] = self.keys[:, slot].reshape(-1, BLOCK).max(axis=1)

    def _update(self, rows: list[int]) -> None:
        used = len(self._fresh)
        if not used:
            return
        if self._score_compiled(rows, len(rows), 0, used):
            return
        keys = self.keys
        slots = slice(0, used)
        step = max(1, BATCH_PAIRS // used)
        for start in range(0, len(rows), step):
            part = np.array(rows[start : start + step], np.int64)
            keys[part, :used] = self.scorer.keys(part, slots, self.eligible[part, :used])
        last = -1
        for row in rows:
            block = row // BLOCK
            if block != last:
                last, first = block, block * BLOCK
                np.maximum.reduce(keys[first : first + BLOCK, :used], axis=0, out=self.block_keys[block, :used])


SCAN_ROWS = 4096
"""Rows scored at once in a full scan: larger arrays leave the cache and are slower."""


def scan_shape(scorer: Scorer, slot: int, eligible: Bools) -> Ints:
    """[row] keys of every row for one shape, from the arrays alone."""
    total = len(eligible)
    keys: Ints = np.empty(total, np.int64)
    slots = slice(slot, slot + 1)
    for start in range(0, total, SCAN_ROWS):
        rows = np.arange(start, min(start + SCAN_ROWS, total))
        keys[rows] = scorer.keys(rows, slots, eligible[rows, None])[:, 0]
    return keys

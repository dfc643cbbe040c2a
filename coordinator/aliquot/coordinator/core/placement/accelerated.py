"""The price policy's scores by the C kernel instead of NumPy: same arrays in, same integers out.

Kept apart from the index so that everything works without it. Addresses are taken anew whenever one of the arrays was
replaced (growth, new prices), which their owners count.
"""

from __future__ import annotations

from typing import Protocol

from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints
from aliquot.coordinator.native import PriceKernel, Scene

COLUMNS_MAX = 256
CPU_PRICES_MAX = 16
"""Bounds of the kernel's own arrays."""

_TABLE = (
    *("share_left", "memory_left", "usable", "base", "island", "numa"),
    *("cpu_left", "host_left", "class_id", "width", "has_foreign", "islands", "numa_known"),
)
_SHAPES = ("share", "memory", "size", "cpu", "host", "count", "linked", "require_island", "proportional")


class IndexArrays(Protocol):
    """The arrays of an index that the kernel reads and writes."""

    keys: Ints
    block_keys: Ints
    eligible: Bools
    allocations: int


class Accelerator:
    """Fills `keys` and `block_keys` of an index by the kernel."""

    def __init__(self, kernel: PriceKernel, scorer: Scorer, policy: Price, block: int) -> None:
        self._kernel = kernel
        self._scorer = scorer
        self._policy = policy
        self._block = block
        self._scene = Scene()
        self._seen: tuple[int, ...] = ()
        self._usable = False
        self._alive: list[Ints | Bools] = []

    def score(self, index: IndexArrays, rows: list[int] | None, n_rows: int, first_slot: int, end_slot: int) -> bool:
        """Score ascending `rows` (None: the first `n_rows`) for the slots; False: beyond the kernel's bounds."""
        inventory, shapes, policy = self._scorer.inventory, self._scorer.shapes, self._policy
        allocated = inventory.table.allocations
        seen = (inventory.layout_version, allocated, shapes.allocations, policy.version, index.allocations)
        if seen != self._seen:
            self._seen = seen
            self._usable = inventory.table.columns <= COLUMNS_MAX and policy.cpu_price_count <= CPU_PRICES_MAX
            self._look(index)
        if self._usable:
            self._kernel.score(self._scene, rows, n_rows, first_slot, end_slot)
        return self._usable

    def _look(self, index: IndexArrays) -> None:
        """Take the addresses of the arrays as they are now."""
        scene, table, shapes = self._scene, self._scorer.inventory.table, self._scorer.shapes
        arrays: dict[str, Ints | Bools] = {name: getattr(table, name) for name in _TABLE}
        arrays.update({name: getattr(shapes, name) for name in _SHAPES})
        worth, cpu_prices = self._policy.by_left()
        arrays.update(worth=worth, cpu_prices=cpu_prices)
        arrays.update(eligible=index.eligible, keys=index.keys, block_keys=index.block_keys)
        for name, array in arrays.items():
            assert array.flags.c_contiguous, f"{name} must lie in one piece"
            setattr(scene, name, array.ctypes.data)
        scene.columns = table.columns
        scene.shape_stride, scene.classes = shapes.capacity, shapes.classes
        scene.n_prices = self._policy.cpu_price_count
        scene.slot_stride, scene.block = index.keys.shape[1], self._block
        self._alive = list(arrays.values())

"""The price policy's scores by compiled code instead of NumPy calls: same arrays in, same integers out.

Kept apart from the index so that everything works without numba, only slower. The arrays are gathered anew whenever one
of them was replaced (growth, new prices), which their owners count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np

from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints

COLUMNS_MAX = 256
"""Devices of one node: a key keeps eight bits for the column."""

_TABLE = (
    *("share_left", "memory_left", "usable", "base", "island", "numa"),
    *("cpu_left", "host_left", "class_id", "width", "islands", "has_foreign", "numa_known"),
)
_SHAPES = ("share", "memory", "size", "cpu", "host", "linked", "require_island", "proportional")

Kernel = Callable[[Any, Ints, int, int], None]


class IndexArrays(Protocol):
    """The arrays of an index that the kernel reads and writes."""

    keys: Ints
    block_keys: Ints
    eligible: Bools
    allocations: int


@cache
def load() -> tuple[type[Any], Kernel] | None:
    """The kernel and the tuple it takes, or None where numba is not installed."""
    try:
        from aliquot.coordinator.core.placement.price_kernel import Scene, score  # noqa: PLC0415 - optional, slow to import
    except ImportError:
        return None
    return Scene, score


class Accelerator:
    """Fills `keys` and `block_keys` of an index by the kernel."""

    def __init__(self, scene: type[Any], kernel: Kernel, scorer: Scorer, policy: Price, block: int) -> None:
        self._make_scene = scene
        self._kernel = kernel
        self._scorer = scorer
        self._policy = policy
        self._block = block
        self._seen: tuple[int, ...] = ()
        self._scene: Any = None

    def score(self, index: IndexArrays, rows: list[int] | None, n_rows: int, first_slot: int, end_slot: int) -> bool:
        """Score ascending `rows` (None: the first `n_rows`) for the slots; False: beyond the kernel's bounds."""
        inventory, shapes, policy = self._scorer.inventory, self._scorer.shapes, self._policy
        allocated = inventory.table.allocations
        seen = (inventory.layout_version, allocated, shapes.allocations, policy.version, index.allocations)
        if seen != self._seen:
            self._seen = seen
            self._scene = self._gather(index) if inventory.table.columns <= COLUMNS_MAX else None
        if self._scene is None:
            return False
        numbers = np.arange(n_rows, dtype=np.int64) if rows is None else np.array(rows, np.int64)
        self._kernel(self._scene, numbers, first_slot, end_slot)
        return True

    def _gather(self, index: IndexArrays) -> Any:  # noqa: ANN401 - `price_kernel.Scene`, which may not be importable
        """The arrays as they are now."""
        table, shapes = self._scorer.inventory.table, self._scorer.shapes
        worth, cpu_prices = self._policy.by_left()
        return self._make_scene(
            **{name: getattr(table, name) for name in _TABLE},
            **{name: getattr(shapes, name) for name in _SHAPES},
            counts=shapes.count,
            classes=shapes.classes,
            worth=worth,
            cpu_prices=cpu_prices,
            eligible=index.eligible,
            keys=index.keys,
            block_keys=index.block_keys,
            block=self._block,
        )

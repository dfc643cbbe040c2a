"""The price policy's scores by compiled code instead of NumPy calls: same arrays in, same integers out.

Kept apart from the index so that everything works without numba, only slower: the index scores by NumPy until `warm_up`
was called in this process, and by the kernel from then on. The arrays are gathered anew whenever one of them was
replaced (growth, new prices).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable

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


_loaded: list[tuple[type[Any], Kernel]] = []
"""The kernel, once `warm_up` has brought it in."""


def kernel() -> tuple[type[Any], Kernel] | None:
    """The kernel and the tuple it takes, or None as long as nobody has called `warm_up` with success."""
    return _loaded[0] if _loaded else None


def needs_compiling() -> bool:
    """Whether `warm_up` would take seconds, because numba's cache does not hold the kernel for this machine. It loads
    numba, and the kernel where it is there, in about a second. Safe in a thread.
    """
    try:
        from aliquot.coordinator.core.placement import price_kernel  # noqa: PLC0415 - optional, slow to import
    except (ImportError, RuntimeError):
        return False  # `warm_up` says why there is nothing to compile
    given: list[tuple[object, ...]] = []
    _compile(price_kernel.Scene, lambda *arguments: given.append(arguments))
    score: Any = price_kernel.score
    signature = tuple(score.typeof_pyval(argument) for argument in given[0])
    return score._cache.load_overload(signature, score.targetctx) is None  # noqa: SLF001 - numba has no other word for it


def warm_up() -> str:
    """Bring the kernel in; it takes about a second, or several where no cache has it compiled. Safe in a thread.

    Returns why the scores stay with NumPy, or "" where they don't. The import of numba alone costs half a second and
    fifty megabytes, which is why this is not done by importing this module.
    """
    if _loaded:
        return ""
    try:
        from aliquot.coordinator.core.placement import price_kernel  # noqa: PLC0415 - optional, slow to import

        _compile(price_kernel.Scene, price_kernel.score)
    except ImportError as error:
        return f"numba is not installed ({error})"
    except RuntimeError as error:  # nowhere to keep what was compiled, or a numba that doesn't know this Python
        return f"numba can't compile here: {error}"
    _loaded.append((price_kernel.Scene, price_kernel.score))
    return ""


def _compile(scene: type[Any], score: Kernel) -> None:
    """Compile for the arrays it will be given, or load that from numba's cache: a pass over no rows does either."""
    inventory, policy = Inventory(), Price()
    scorer = Scorer(inventory, policy, ShapeTable(inventory))
    Accelerator(scene, score, scorer, policy, 1).score(_NoRows(), [], 0, 0, 0)


class _NoRows:
    """An index without rows."""

    def __init__(self) -> None:
        self.keys: Ints = np.zeros((1, 1), np.int64)
        self.block_keys: Ints = np.zeros((1, 1), np.int64)
        self.eligible: Bools = np.zeros((1, 1), np.bool_)
        self.allocations = 0


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
        return self._make_scene(
            **{name: getattr(table, name) for name in _TABLE},
            **{name: getattr(shapes, name) for name in _SHAPES},
            counts=shapes.count,
            classes=shapes.classes,
            **self._policy.worths._asdict(),
            eligible=index.eligible,
            keys=index.keys,
            block_keys=index.block_keys,
            block=self._block,
        )

"""Has the price kernel compiled, where numba is installed. A coordinator has another process do so."""

from __future__ import annotations

import numpy as np

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.accelerated import Accelerator, kernel, load
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable


def compiled() -> bytes:
    """The kernel as `load` takes it. Compiling loads numba: half a second and a hundred megabytes that never go again,
    and some seconds more where numba's cache does not hold it.

    Raises RuntimeError: why it can't be had here.
    """
    try:
        from aliquot.coordinator.core.placement.compiling import object_code  # noqa: PLC0415 - optional, slow to import

        inventory, policy = Inventory(), Price()
        none = Accelerator(lambda *_: 0, Scorer(inventory, policy, ShapeTable(inventory)), policy, 1)
        return object_code(none.gather(_NoRows()))
    except (ImportError, AttributeError) as error:  # there is none, or one of another inside
        raise RuntimeError(f"numba can't compile here ({error})") from error


def warm_up() -> str:
    """Compile in this process and load; returns why the scores stay with NumPy, or "" where they don't."""
    try:
        if kernel() is None:
            load(compiled())
    except RuntimeError as error:
        return str(error)
    return ""


class _NoRows:
    """An index without rows."""

    def __init__(self) -> None:
        self.keys: Ints = np.zeros((1, 1), np.int64)
        self.block_keys: Ints = np.zeros((1, 1), np.int64)
        self.eligible: Bools = np.zeros((1, 1), np.bool_)
        self.allocations = 0

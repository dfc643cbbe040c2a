"""The coordinator's C part, and the way to it: the price policy's scoring loop.

It computes what `core/placement` computes in NumPy, from the same arrays to the same integers, some fifty times faster,
and is left out where it was not built: `load()` then gives None and NumPy does the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).parent / "lib" / "libaliquot_price.so"
ABI = 1

_POINTERS_BEFORE = (
    *("share_left", "memory_left", "usable", "base", "island", "numa"),
    *("cpu_left", "host_left", "class_id", "width", "has_foreign", "islands", "numa_known"),
)


class Scene(ctypes.Structure):
    """`Scene` of `price_kernel.c`: addresses of arrays, and their sizes. Whoever fills it keeps the arrays alive."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS_BEFORE),
        ("columns", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("share", "memory", "size", "cpu", "host", "count")),
        *((name, ctypes.c_void_p) for name in ("linked", "require_island", "proportional")),
        ("shape_stride", ctypes.c_int64),
        ("classes", ctypes.c_int64),
        ("worth", ctypes.c_void_p),
        ("cpu_prices", ctypes.c_void_p),
        ("n_prices", ctypes.c_int64),
        ("eligible", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("block_keys", ctypes.c_void_p),
        ("slot_stride", ctypes.c_int64),
        ("block", ctypes.c_int64),
    ]


class PriceKernel:
    """The loaded library."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._score = library.aliquot_price_score
        self._score.restype = None

    def score(self, scene: Scene, rows: list[int] | None, n_rows: int, first_slot: int, end_slot: int) -> None:
        """Score ascending `rows` (None: the first `n_rows`) for the slots, into the scene's keys."""
        numbers = None if rows is None else (ctypes.c_int64 * n_rows)(*rows)
        self._score(
            ctypes.byref(scene),
            numbers,
            ctypes.c_int64(n_rows),
            ctypes.c_int64(first_slot),
            ctypes.c_int64(end_slot),
        )


@cache
def load() -> PriceKernel | None:
    """The kernel, or None where it was not built, or built from other sources than these."""
    try:
        # PyDLL keeps the interpreter's lock: giving it away for microseconds would hand the writer's turn to others.
        library = ctypes.PyDLL(str(LIBRARY))
    except OSError:
        return None
    library.aliquot_price_abi.restype = ctypes.c_int64
    library.aliquot_price_scene_bytes.restype = ctypes.c_int64
    if library.aliquot_price_abi() != ABI or library.aliquot_price_scene_bytes() != ctypes.sizeof(Scene):
        return None
    return PriceKernel(library)

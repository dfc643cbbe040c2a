"""The price policy's scores by compiled code instead of NumPy calls: same arrays in, same integers out.

Kept apart from the index so that everything works without numba, only slower: the index scores by NumPy until machine
code was loaded in this process, and by that from then on. A process that only loads it needs no numba (`machine_code`
makes it in another). The arrays are gathered anew whenever one of them was replaced (growth, new prices).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints

COLUMNS_MAX = 256
"""Devices of one node: a key keeps eight bits for the column."""

ENTRY = "aliquot_score"
"""The symbol of the compiled code."""
_OBJECT_FILES = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
"""How those of Linux and of macOS begin."""

_TABLE = (
    *("share_left", "memory_left", "usable", "base", "island", "numa"),
    *("cpu_left", "host_left", "class_id", "width", "islands", "has_foreign", "numa_known"),
)
_SHAPES = ("share", "memory", "size", "cpu", "host", "linked", "require_island", "proportional")

Kernel = Callable[[Any, Any, int], int]
"""Machine code: room for what it returns and raises, which is nothing, and the address of its arguments."""


class Scene(NamedTuple):
    """What a pass reads and writes."""

    # The inventory's table: [row][column], then [row].
    share_left: Ints
    memory_left: Ints
    usable: Ints
    base: Ints
    island: Ints
    numa: Ints
    cpu_left: Ints
    host_left: Ints
    class_id: Ints
    width: Ints
    islands: Ints
    has_foreign: Ints
    numa_known: Bools
    # The shapes: [class][slot], then [slot]. Rows without devices use the class after the last.
    share: Ints
    memory: Ints
    size: Ints
    cpu: Ints
    host: Ints
    counts: Ints
    linked: Bools
    require_island: Bools
    proportional: Bools
    classes: int
    # The prices, as in `policies.price.Worths`.
    worth: Ints
    together: Ints
    cpu_step: int
    table_of: Ints
    leasable: Ints
    cpu_prices: Ints
    share_parts: int
    memory_parts: int
    cores_max: int
    # The index: [row][slot], [block][slot].
    eligible: Bools
    keys: Ints
    block_keys: Ints
    block: int
    # Room to work in: [λ], then [column].
    before: Ints
    without: Ints
    breaking: Ints
    states: Ints
    weight: Ints

    def words(self) -> list[int]:
        """It as numba lays out its arguments: numbers as they are, and of each array what numba knows of one."""
        return [word for value in self for word in (array_words(value) if isinstance(value, np.ndarray) else [value])]


def array_words(array: Ints | Bools) -> list[int]:
    """Without an owner, since nothing is counted; its items, where they are, how many each way and how far apart."""
    assert array.flags.c_contiguous, "the compiled code takes rows to lie one after another"
    return [0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides]


_REST = (*array_words(np.zeros(0, np.int64)), 0, 0)
"""Of a call, what follows the scene: the rows, the first slot and the one after the last."""


class IndexArrays(Protocol):
    """The arrays of an index that the kernel reads and writes."""

    keys: Ints
    block_keys: Ints
    eligible: Bools
    allocations: int


FEW = 64
"""So many rows are written where the last ones were: others are an array of their own each time."""
_SIZE, _LENGTH = 2, 5
"""Where `array_words` says how many items there are, in all and along the array."""

_loaded: list[tuple[Kernel, object]] = []
"""The kernel, and what keeps it in memory, once it has been brought in."""


def kernel() -> Kernel | None:
    """The kernel, or None as long as nobody has brought it in."""
    return _loaded[0][0] if _loaded else None


def load(object_code: bytes) -> None:
    """Take a kernel that was compiled on this machine, from the next score on. Safe in a thread.

    Raises RuntimeError where it can't be loaded.
    """
    if not object_code.startswith(_OBJECT_FILES):  # LLVM doesn't look, and would end the process
        raise RuntimeError("that is no object file")
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - optional, fifty megabytes

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
        engine.finalize_object()
    except (ImportError, OSError, AttributeError) as error:  # there is none, or its library isn't for this machine
        raise RuntimeError(f"llvmlite can't load it ({error})") from error
    # As a function of Python's own, which keeps the interpreter's lock: it is shorter than giving that up takes.
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    _loaded[:] = [(prototype(engine.get_function_address(ENTRY)), engine)]


class Accelerator:
    """Fills `keys` and `block_keys` of an index by the kernel."""

    def __init__(self, kernel: Kernel, scorer: Scorer, policy: Price, block: int) -> None:
        self._kernel = kernel
        self._scorer = scorer
        self._policy = policy
        self._block = block
        self._seen: tuple[int, ...] = ()
        self._scene: Scene | None = None
        self._call: Ints = np.zeros(0, np.int64)
        self._address = 0
        self._few: Ints = np.zeros(FEW, np.int64)
        self._few_words = array_words(self._few)
        self._nothing = ctypes.byref((ctypes.c_void_p * 1)())

    def score(self, index: IndexArrays, rows: list[int] | None, n_rows: int, first_slot: int, end_slot: int) -> bool:
        """Score ascending `rows` (None: the first `n_rows`) for the slots; False: beyond the kernel's bounds."""
        inventory, shapes, policy = self._scorer.inventory, self._scorer.shapes, self._policy
        allocated = inventory.table.allocations
        seen = (inventory.layout_version, allocated, shapes.allocations, policy.version, index.allocations)
        if seen != self._seen:
            self._seen = seen
            self._scene = self.gather(index) if inventory.table.columns <= COLUMNS_MAX else None
            if self._scene is not None:
                self._call = np.array([*self._scene.words(), *_REST], np.int64)
                self._address = self._call.ctypes.data
        if self._scene is None:
            return False
        if rows is not None and n_rows <= FEW:  # a grant changes one: to say where it is took as long as to score it
            numbers, words = self._few, self._few_words
            numbers[:n_rows] = rows
            words[_SIZE] = words[_LENGTH] = n_rows
        else:  # the kernel reads it: it must not go before
            numbers = np.arange(n_rows, dtype=np.int64) if rows is None else np.array(rows, np.int64)
            words = array_words(numbers)
        self._call[-len(_REST) :] = (*words, first_slot, end_slot)
        self._kernel(self._nothing, self._nothing, self._address)
        return True

    def gather(self, index: IndexArrays) -> Scene:
        """The arrays as they are now."""
        table, shapes, worths = self._scorer.inventory.table, self._scorer.shapes, self._policy.worths
        a_price, a_column = (np.zeros(length, np.int64) for length in (len(worths.cpu_prices), table.columns))
        return Scene(
            **{name: getattr(table, name) for name in _TABLE},
            **{name: getattr(shapes, name) for name in _SHAPES},
            counts=shapes.count,
            classes=shapes.classes,
            **worths._asdict(),
            eligible=index.eligible,
            keys=index.keys,
            block_keys=index.block_keys,
            block=self._block,
            before=a_price,
            without=a_price.copy(),
            breaking=a_price.copy(),
            states=a_column,
            weight=a_column.copy(),
        )

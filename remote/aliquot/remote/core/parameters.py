"""Parameters of kernels: packed as their kernel declares them, by the server, with addresses in the place of handles.

A layout is a list of words, one for each parameter: `u8` to `u64`, `i8` to `i64`, `f32`, `f64`, `pointer`, or
`bytes:SIZE:ALIGNMENT` for a structure. Each lies at the next multiple of its alignment, as CUDA has it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

PARAMETERS_MAX = 256
PARAMETER_BYTES_MAX = 4096
"""Of all parameters of one kernel together: what every version of CUDA takes."""
_NUMBERS = {
    "u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q",
    "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q",
    "f32": "<f", "f64": "<d",
}  # fmt: skip
_POINTER = struct.Struct("<Q")
_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128)

Value: TypeAlias = int | float | bytes | list[int]
"""A number, the bytes of a structure, or `[handle, offset]`."""


class ParameterError(ValueError):
    """A layout that no kernel has, or values that are not of it. Its text says which."""


class Layout:
    """Where each parameter lies."""

    __slots__ = ("_packers", "places", "size", "words")

    def __init__(self, words: Sequence[str]) -> None:
        """Raises `ParameterError`."""
        if len(words) > PARAMETERS_MAX:
            raise ParameterError(f"{len(words)} parameters; a kernel has {PARAMETERS_MAX} at most")
        self.words = tuple(words)
        places: list[tuple[int, int]] = []
        self._packers: list[tuple[str, struct.Struct | None]] = []
        end = 0
        for word in words:
            size, alignment, packer = _described(word)
            start = -(-end // alignment) * alignment
            places.append((start, size))
            self._packers.append((word, packer))
            end = start + size
        if end > PARAMETER_BYTES_MAX:
            raise ParameterError(f"{end} bytes of parameters; a kernel takes {PARAMETER_BYTES_MAX} at most")
        self.places = tuple(places)
        """Offset and size of each, in bytes."""
        self.size = end

    def pack(self, values: Sequence[Value], address: Callable[[int, int], int]) -> bytearray:
        """The parameters as the device wants them. `address` gives that of an offset in a handle's allocation.

        Raises:
            ParameterError: too few or too many values, or one that its parameter can't hold.
        """
        if len(values) != len(self.words):
            raise ParameterError(f"{len(values)} values were given for {len(self.words)} parameters")
        packed = bytearray(self.size)
        for number, value in enumerate(values):
            word, packer = self._packers[number]
            start, size = self.places[number]
            if word == "pointer":
                if not isinstance(value, list) or len(value) != 2:
                    raise ParameterError(f"parameter {number} is a pointer: a handle and an offset are wanted")
                _POINTER.pack_into(packed, start, address(value[0], value[1]))
            elif packer is None:
                if not isinstance(value, bytes) or len(value) != size:
                    raise ParameterError(f"parameter {number} is a structure of {size} bytes")
                packed[start : start + size] = value
            else:
                _put(packer, packed, start, value, f"parameter {number} ({word})")
        return packed


def _put(packer: struct.Struct, packed: bytearray, start: int, value: Value, what: str) -> None:
    whole = packer.format[-1] not in "fd"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ParameterError(f"{what} is a {'whole ' if whole else ''}number, not {type(value).__name__}")
    try:
        packer.pack_into(packed, start, value)
    except (struct.error, OverflowError) as error:
        raise ParameterError(f"{what} can't hold {value}: {error}") from None


def _described(word: str) -> tuple[int, int, struct.Struct | None]:
    """Size, alignment, and what packs it; None for a structure."""
    if word == "pointer":
        return _POINTER.size, _POINTER.size, _POINTER
    code = _NUMBERS.get(word)
    if code is not None:
        packer = struct.Struct(code)
        return packer.size, packer.size, packer
    kind, _, rest = word.partition(":")
    size, _, alignment = rest.partition(":")
    if kind == "bytes" and _small(size) and _small(alignment) and int(alignment) in _ALIGNMENTS:
        return int(size), int(alignment), None
    raise ParameterError(f"there is no kind of parameter {word[:40]!r}")


def _small(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4 and 0 < int(text) <= PARAMETER_BYTES_MAX

"""Where the elements of a tensor lie in its allocation: plain arithmetic on sizes and strides."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.remote.core.bounds import DIMENSIONS_MAX, ELEMENTS_MAX

ITEM_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by the name of the type as PyTorch has it. Other types can't travel."""


class LayoutError(ValueError):
    """Sizes, strides or a type that no tensor here may have. Its text says which."""


def item_bytes(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        LayoutError: the type can't travel.
    """
    try:
        return ITEM_BYTES[dtype]
    except KeyError:
        raise LayoutError(f"tensors of type {dtype[:40]!r} can't be held remotely") from None


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one that the layout reaches, both counted: what an allocation must have.

    Raises:
        LayoutError: negative or oversized numbers, or strides that don't belong to the sizes.
    """
    if len(shape) != len(stride) or len(shape) > DIMENSIONS_MAX:
        raise LayoutError(
            f"{len(shape)} sizes and {len(stride)} strides; both must be as many, {DIMENSIONS_MAX} at most"
        )
    reach = 1
    empty = False
    for size, step in zip(shape, stride, strict=True):
        if size < 0 or step < 0 or size > ELEMENTS_MAX or step > ELEMENTS_MAX:
            raise LayoutError(f"size {size} with stride {step} is out of bounds")
        if size == 0:
            empty = True
        else:
            reach += (size - 1) * step
    if empty:
        return 0
    if reach > ELEMENTS_MAX:
        raise LayoutError(f"a layout that reaches {reach} elements is out of bounds (at most {ELEMENTS_MAX})")
    return reach


def count(shape: Sequence[int]) -> int:
    """Elements that a shape has."""
    number = 1
    for size in shape:
        number *= size
    return number


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose elements lie in order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two indices may name one element (never says no where they do; may say yes for interleaved strides)."""
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if size == 0:
            return False
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False

"""The packed stream of operators: whole numbers, two bytes each where all fit, else four.

One operator is `[template, site, tensors and scalars…, results…]`. A tensor is the handle of its allocation, with the
offset behind it where its layout says that it has one. Scalars and offsets take four words of 16 bits. What each
operator has is said by its template, so nothing else is in the stream.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

FREE = 0
"""`[FREE, handle]`: the client holds nothing of this allocation any more."""

REPLAY = 1
"""`[REPLAY, site, recording]`: run a captured step again."""

TEMPLATES_FROM = 2
"""The first number that a template may have."""

_SCALAR = struct.Struct("<d")
_WHOLE = struct.Struct("<q")
_QUARTERS = struct.Struct("<4H")


class StreamError(ValueError):
    """Bytes that are no stream of operators."""


def float_words(value: float) -> tuple[int, ...]:
    """Four words of a float, bit by bit."""
    return _QUARTERS.unpack(_SCALAR.pack(value))


def words_float(words: Sequence[int], at: int) -> float:
    """The float whose four words begin there.

    Raises:
        StreamError: they end too early, or are no words of 16 bits.
    """
    try:
        number: float = _SCALAR.unpack(_QUARTERS.pack(words[at], words[at + 1], words[at + 2], words[at + 3]))[0]
    except (IndexError, struct.error):
        raise StreamError("a scalar of four words of 16 bits was expected") from None
    return number


def int_words(value: int) -> tuple[int, ...]:
    """Four words of a whole number of 64 bits.

    Raises:
        OverflowError: it has more.
    """
    try:
        return _QUARTERS.unpack(_WHOLE.pack(value))
    except struct.error:
        raise OverflowError(f"{value} does not fit 64 bits") from None


def words_int(words: Sequence[int], at: int) -> int:
    """The whole number whose four words begin there.

    Raises:
        StreamError: they end too early, or are no words of 16 bits.
    """
    try:
        number: int = _WHOLE.unpack(_QUARTERS.pack(words[at], words[at + 1], words[at + 2], words[at + 3]))[0]
    except (IndexError, struct.error):
        raise StreamError("a whole number of four words of 16 bits was expected") from None
    return number


def pack(words: list[int]) -> tuple[bytes, bytes]:
    """The width as one byte (`2` or `4`), and the words in little-endian order."""
    try:
        packed, width = array("H", words), b"\x02"
    except OverflowError:
        packed, width = array("I", words), b"\x04"
    if sys.byteorder != "little":
        packed.byteswap()
    return width, packed.tobytes()


def unpack(width: int, data: bytes | memoryview) -> list[int]:
    """Words as they were packed.

    Raises:
        StreamError: another width, or bytes that are no whole number of words.
    """
    if width not in (2, 4) or len(data) % width:
        raise StreamError(f"{len(data)} bytes are no words of {width} bytes")
    words = array("H" if width == 2 else "I")
    words.frombytes(data)
    if sys.byteorder != "little":
        words.byteswap()
    return words.tolist()

"""How much is in a message, before it is decoded: what takes two bytes to send may take two hundred to hold, and far
more time to go through.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError

_VARINT_BYTES_MAX: Final = 10
_LENGTH_DELIMITED: Final = 2
"""The wire type of messages and texts."""
_SMALL_BYTES: Final = 64 * limits.KIB
"""What is no larger can't hold so many parts that it matters."""
AGENTS_PARTS_MAX: Final = 40_000
"""Messages and repeated texts within one message of an agent."""
CALLS_PARTS_MAX: Final = 120_000
"""Within one of a caller: 10,000 tenants with all that there is to say of them."""


def check_parts(raw: bytes, descriptor: Any, most: int) -> None:  # noqa: ANN401 - of either implementation of protobuf
    """Raises InvalidFieldError where the message would have more parts than that, or can't be decoded.

    A message without messages within is cheap to decode, whatever is in it: its reader looks at how many there are.
    """
    if len(raw) <= _SMALL_BYTES or all(inner is None for inner in _parts(descriptor).values()):
        return
    if len(raw) - len(raw.translate(None, _first_bytes(descriptor))) <= most:
        return  # at native speed: whatever these bytes mean, there are no more parts than such bytes
    try:
        _count_parts(raw, 0, len(raw), descriptor, 0, most)
    except IndexError:
        raise undecodable() from None


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends. Raises InvalidFieldError beyond ten bytes, and where it is cut off."""
    value = 0
    for number, byte in enumerate(raw[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise undecodable()


def undecodable() -> InvalidFieldError:
    """What a message is answered with that can't be decoded."""
    return InvalidFieldError("message", "can't be decoded")


@cache
def _parts(descriptor: Any) -> dict[int, Any]:  # noqa: ANN401
    """The fields that make parts: by number, the descriptor of the messages in them, or None for texts."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None or (field.is_repeated and field.type in (field.TYPE_STRING, field.TYPE_BYTES))
    }


@cache
def _first_bytes(descriptor: Any) -> bytes:  # noqa: ANN401
    """The bytes that the tags of parts may begin with, in a message of this kind and in all within it."""
    seen: dict[Any, None] = {}
    waiting = [descriptor]
    while waiting:
        known = waiting.pop()
        if known not in seen:
            seen[known] = None
            waiting += [inner for inner in _parts(known).values() if inner is not None]
    low = {(number << 3 | _LENGTH_DELIMITED) & 0x7F for known in seen for number in _parts(known)}
    return bytes(sorted(low | {byte | 0x80 for byte in low}))  # a tag may be sent in more bytes than it needs


def _count_parts(raw: bytes, at: int, end: int, descriptor: Any, count: int, most: int) -> int:  # noqa: ANN401
    """How many parts there are, with those counted before. Raises InvalidFieldError as soon as there are too many,
    IndexError for what ends too early, and InvalidFieldError for what can't be decoded.
    """
    parts = _parts(descriptor)
    while at < end:
        tag = raw[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(raw, at - 1)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            size = raw[at]
            at += 1
            if size >= 0x80:
                size, at = read_varint(raw, at - 1)
            if at + size > end:
                raise undecodable()
            if tag >> 3 in parts:
                count += 1
                if count > most:
                    raise InvalidFieldError("message", f"more than {most} parts")
                inner = parts[tag >> 3]
                if inner is not None and size:
                    count = _count_parts(raw, at, at + size, inner, count, most)
            at += size
        elif wire_type == 0:
            at += 1
            if raw[at - 1] >= 0x80:
                _, at = read_varint(raw, at - 1)
        elif wire_type == 1:
            at += 8
        elif wire_type == 5:
            at += 4
        else:
            raise undecodable()  # a group, which the contract has none of
    return count

"""Messages that somebody who means harm might send: meant ones, changed field by field and byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DEPTH_MAX = 4
_TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "../../x",
    "{}",
    "é",
    "🦀" * 50,
    "-",
    "/",
    "x" * 300,
    "x" * 20_000,
    "9" * 5_000,
    "-1",
    "1e999",
    "NaN",
    "%s",
    "2026-02-30T25:61",
    "\u202e",
)
_COUNTS = (2, 65, 257, 1_001)
_ADDED_BYTES_MAX = 8 << 20
"""What one change may add: twice of what a server takes. Crowds of crowds would fill this machine's memory instead."""
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (31, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_INT64: (63, True),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
    FieldDescriptor.CPPTYPE_ENUM: (31, True),
}


class Vocabulary:
    """Words that mean something to the coordinator, by the name of the field that they go in."""

    def __init__(self, words: dict[str, list[str]]) -> None:
        self._words = words

    def pick(self, rng: Random, name: str) -> str:
        """One for a field of this name; any short word where none is known."""
        return rng.choice(self._words.get(name) or ["a", "b", "team"])

    def learn(self, name: str, word: str) -> None:
        """One more, instead of one of those known."""
        known = self._words.setdefault(name, [])
        if word and word not in known:
            known.append(word)
            del known[1 : max(1, len(known) - 50)]


def meant(descriptor: Descriptor, rng: Random, words: Vocabulary, depth: int = 0) -> Any:
    """A message that could be meant: some of its fields, with values of a likely size."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() < 0.6 or (field.message_type is not None and depth >= DEPTH_MAX):
            continue
        _fill(message, field, rng, words, depth)
    return message


def _fill(message: Any, field: FieldDescriptor, rng: Random, words: Vocabulary, depth: int) -> None:
    if _is_map(field):
        target = getattr(message, field.name)
        if _of_texts(field):
            target[words.pick(rng, field.name)] = words.pick(rng, "value")
    elif field.message_type is not None:
        target = getattr(message, field.name)
        for _ in range(rng.choice((0, 1, 1, 2)) if field.is_repeated else 1):
            made = meant(field.message_type, rng, words, depth + 1)
            target.append(made) if field.is_repeated else target.CopyFrom(made)
    elif field.is_repeated:
        getattr(message, field.name).extend(_likely(field, rng, words) for _ in range(rng.choice((0, 1, 2))))
    else:
        setattr(message, field.name, _likely(field, rng, words))


def _likely(field: FieldDescriptor, rng: Random, words: Vocabulary) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        word = words.pick(rng, field.name)
        return word.encode() if field.type == field.TYPE_BYTES else word
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.enum_type is not None:
        return rng.choice([value.number for value in field.enum_type.values])
    if field.cpp_type in _BITS:
        return (
            rng.choice((0, 1, 1, 2, 3, 10, 100, 1_000, 80 << 30))
            if _BITS[field.cpp_type][0] > 32
            else rng.choice((0, 1, 2, 100))
        )
    return rng.random()


def changed(message: Message, rng: Random) -> Message:
    """The same message with one field, somewhere in it, that nobody would mean."""
    places = list(_places(message))
    if not places:
        return message
    target, field = rng.choice(places)
    if _is_map(field):
        if _of_texts(field):
            for _ in range(rng.choice((1, 70))):
                getattr(target, field.name)[rng.choice(_TEXTS) + str(rng.random())] = rng.choice(_TEXTS)
    elif field.is_repeated:
        _crowd(target, field, rng)
    elif field.message_type is not None:
        if rng.random() < 0.5:
            target.ClearField(field.name)
        else:
            getattr(target, field.name).SetInParent()
    else:
        setattr(target, field.name, _extreme(field, rng))
    return message


def _places(message: Any, depth: int = 0) -> Iterator[tuple[Any, FieldDescriptor]]:
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or _is_map(field) or depth >= DEPTH_MAX:
            continue
        inner = getattr(message, field.name)
        for each in inner if field.is_repeated else [inner] if message.HasField(field.name) else []:
            yield from _places(each, depth + 1)


def _crowd(target: Any, field: FieldDescriptor, rng: Random) -> None:
    found = getattr(target, field.name)
    count = rng.choice(_COUNTS)
    if rng.random() < 0.3:
        target.ClearField(field.name)
    elif field.message_type is not None:
        one = found[0] if len(found) else GetMessageClass(field.message_type)()
        found.extend([one] * min(count, _ADDED_BYTES_MAX // (one.ByteSize() + 1)))
    else:
        one = found[0] if len(found) and rng.random() < 0.5 else _extreme(field, rng)
        size = len(one) if isinstance(one, str | bytes) else 8
        found.extend([one] * min(count, _ADDED_BYTES_MAX // (size + 1)))


def _extreme(field: FieldDescriptor, rng: Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = rng.choice(_TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type in _BITS:
        bits, signed = _BITS[field.cpp_type]
        most = (1 << bits) - 1
        known = [0, 1, most, most - 1, most // 2, most // 2 + 1, 1 << 16, 999, 4_097]
        return rng.choice([*known, -1, -most - 1] if signed else known)
    return rng.choice((0.0, -1.0, float("inf"), float("nan"), 1e308))


def spoilt(raw: bytes, rng: Random) -> bytes:
    """Bytes that are no message any more, or a stranger one."""
    match rng.randrange(7):
        case 0:
            return raw[: rng.randrange(len(raw) + 1)]
        case 1:
            at = rng.randrange(len(raw) + 1)
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 2:
            return raw + bytes([rng.randrange(1, 16) << 3]) + b"\xff" * rng.choice((9, 10, 11, 5_000)) + b"\x01"
        case 3:
            return raw + bytes([rng.randrange(1, 16) << 3 | 2]) + b"\xff" * rng.choice((4, 9, 11)) + b"\x0f"
        case 4:
            return raw + b"\xfa\x3f\x03xyz"
        case 5:
            return raw + bytes([rng.randrange(1, 16) << 3 | 3]) * rng.choice((1, 200))
        case _:
            return rng.randbytes(rng.randrange(64))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _of_texts(field: FieldDescriptor) -> bool:
    """Whether the values of a map are texts."""
    entry = field.message_type
    return entry is not None and entry.fields_by_name["value"].cpp_type == FieldDescriptor.CPPTYPE_STRING

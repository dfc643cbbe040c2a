"""Frames that are nearly right: messages built field by field from their types, then sometimes broken."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Mapping, Sequence

import msgspec

WHOLE = (0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 255, 4096, -1, -8, 1 << 16, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63)
REAL = (0.0, 1.0, -1.0, 0.5, 1e308, float("inf"), float("nan"), -0.0)
_DEPTH_MAX = 3


class Maker:
    """Makes messages. `numbers` and `words` are what fields of a name may have, beside anything else now and then."""

    def __init__(
        self, chance: random.Random, numbers: Mapping[str, Sequence[int]], words: Mapping[str, Sequence[str]]
    ) -> None:
        self.chance = chance
        self._numbers = numbers
        self._words = words
        self._hints: dict[type, dict[str, object]] = {}

    def message(self, kind: type[msgspec.Struct], depth: int = 0) -> msgspec.Struct:
        """A message of a kind."""
        hints = self._hints.get(kind)
        if hints is None:
            hints = self._hints[kind] = typing.get_type_hints(kind)
        fields = msgspec.structs.fields(kind)
        made: dict[str, object] = {}
        for field in fields:
            if not field.required and self.chance.random() < 0.5:
                continue
            made[field.name] = self.value(hints[field.name], field.name, depth)
        return kind(**made)

    def value(self, kind: object, name: str, depth: int = 0) -> object:
        """A value of a type, for a field of a name."""
        chance = self.chance
        origin = typing.get_origin(kind)
        arguments = typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self.value(chance.choice(arguments), name, depth)
        if origin in (list, tuple):
            fixed = origin is tuple and arguments[-1] is not Ellipsis
            if fixed:
                return tuple(self.value(each, name, depth) for each in arguments)
            count = 0 if depth > _DEPTH_MAX else chance.choice((0, 1, 1, 2, 2, 3, 4))
            return origin(self.value(arguments[0], name, depth + 1) for _ in range(count))
        if origin is dict:
            return {"device": self.value(arguments[1], name, depth + 1)} if chance.random() < 0.3 else {}
        if kind is bool:
            return chance.random() < 0.5
        if kind is int:
            usual = self._numbers.get(name, WHOLE)
            return chance.choice(usual if chance.random() < 0.9 else WHOLE)
        if kind is float:
            return chance.choice(REAL)
        if kind is str:
            return chance.choice(self._words.get(name, ("", "x", "nothing", "é" * 40)))
        if kind is bytes:
            return chance.randbytes(chance.choice((0, 1, 8, 32, 33)))
        if kind is type(None):
            return None
        assert isinstance(kind, type)
        assert issubclass(kind, msgspec.Struct)
        return self.message(kind, depth + 1)

    def broken(self, frame: bytes, corpus: Sequence[bytes]) -> bytes:
        """A frame with bytes changed, lost, or those of another one."""
        chance = self.chance
        mutable = bytearray(frame)
        how = chance.randrange(4)
        if how == 0 and mutable:
            for _ in range(chance.randrange(1, 4)):
                mutable[chance.randrange(len(mutable))] = chance.randrange(256)
        elif how == 1:
            del mutable[chance.randrange(len(mutable) + 1) :]
        elif how == 2 and corpus:
            other = chance.choice(corpus)
            mutable[chance.randrange(len(mutable) + 1) :] = other[chance.randrange(len(other) + 1) :]
        else:
            mutable[1:1] = chance.randbytes(chance.randrange(8))
        return bytes(mutable)

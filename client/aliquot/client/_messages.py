"""Converts values to messages of the contract and back, by the names of their fields.

For types of which few come at a time. Leases, slices and devices come by the thousand; `_from_proto` reads them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from aliquot.client._errors import InvalidRequest, PoolError

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def read(message: Message, kind: type[T]) -> T:
    """A message as a value of this type. Fields that the type doesn't have are left out."""
    return kind(
        **{
            name: None if optional and not message.HasField(name) else _read(message, name, hint)
            for name, hint, optional in _fields(kind)
        }
    )


def write(value: object, into: M) -> M:
    """Fill a message with the fields of a value, and return it. None is left out.

    Raises `InvalidRequest` for what its field can't carry.
    """
    for name, hint, optional in _fields(type(value)):
        found = getattr(value, name)
        if found is None:
            continue
        try:
            _put(into, name, hint, found, optional=optional)
        except PoolError:
            raise
        except ValueError as error:
            raise InvalidRequest(f"{name}: {found!r} can't be sent: {error}", reason="INVALID_FIELD") from error
    return into


def _put(into: Message, name: str, hint: Any, found: Any, *, optional: bool) -> None:  # noqa: ANN401 - of the field's type
    if _is_value(hint):
        part = write(found, type(getattr(into, name))())
        if optional or part.ByteSize():
            getattr(into, name).CopyFrom(part)
    elif isinstance(found, tuple):
        target = getattr(into, name)
        for item in found:
            if _is_value(item):
                write(item, target.add())
            else:
                target.append(item)
    elif isinstance(found, Mapping):
        getattr(into, name).update(found)
    else:
        setattr(into, name, found)


def _read(message: Message, name: str, hint: Any) -> Any:  # noqa: ANN401 - of the field's type
    found: Any = getattr(message, name)
    if _is_value(hint):
        return read(found, hint)
    if get_origin(hint) is tuple:
        inner: Any = get_args(hint)[0]
        return tuple(read(item, inner) for item in found) if _is_value(inner) else tuple(found)
    if get_origin(hint) is Mapping:
        return dict(found)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _word(message, name, hint)
    # Sums that may outgrow 64 bits are decimal strings in the contract.
    return int(found or 0) if hint is int else found


def _word(message: Message, name: str, kind: type[StrEnum]) -> StrEnum:
    names: Any = message.DESCRIPTOR.fields_by_name[name].enum_type
    known = names.values_by_number.get(getattr(message, name))
    prefix = names.values_by_number[0].name.removesuffix("UNSPECIFIED")
    word = "UNSPECIFIED" if known is None else known.name.removeprefix(prefix)
    return kind(word if word in kind.__members__ else "UNSPECIFIED")


_known: dict[Any, tuple[tuple[str, Any, bool], ...]] = {}


def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type, and whether it may be None; gathered once per type."""
    found = _known.get(kind)
    if found is None:
        hints = get_type_hints(kind)
        found = _known[kind] = tuple(_field(name, hints[name]) for name in hints if name in _names(kind))
    return found


def _field(name: str, hint: Any) -> tuple[str, Any, bool]:  # noqa: ANN401 - a type
    optional = isinstance(hint, types.UnionType)
    return name, get_args(hint)[0] if optional else hint, optional


def _names(kind: Any) -> frozenset[str]:  # noqa: ANN401 - a dataclass
    return frozenset(field.name for field in dataclasses.fields(kind))


def _is_value(hint: Any) -> bool:  # noqa: ANN401 - a type, or an instance
    return dataclasses.is_dataclass(hint)

"""Converts values to messages of the contract and back: by the declared tables, else by the names of their fields."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from aliquot.client._errors import InvalidRequest
from aliquot.common.fields import reader, refused_at, writer

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def read(message: Message, kind: type[T]) -> T:
    """A message as a value of this type. Fields that the type doesn't have are left out."""
    return reader(type(message), kind).read(message)


def write(value: object, into: M) -> M:
    """Fill an empty message with the fields of a value, and return it. None is left out.

    Raises `InvalidRequest` for what its field can't carry.
    """
    try:
        writer(type(into), type(value)).write(into, value)
    except ValueError as error:
        raise InvalidRequest(f"{refused_at(error)} can't be sent: {error}", reason="INVALID_FIELD") from error
    return into

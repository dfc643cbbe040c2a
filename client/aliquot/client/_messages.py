"""Converts values to messages of the contract and back: by the declared tables, else by the names of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

from aliquot.client._errors import InvalidRequest
from aliquot.common.errors import AliquotError
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
    with sendable():
        writer(type(into), type(value)).write(into, value)
    return into


@contextmanager
def sendable() -> Iterator[None]:
    """A message is being filled. Raises `InvalidRequest` for values that it can't carry."""
    try:
        yield
    except ValueError as error:  # protobuf's word for numbers out of range, and for text that is none
        if isinstance(error, AliquotError):
            raise
        hint = "write text in UTF-8" if isinstance(error, UnicodeError) else "numbers are of 64 bits at most"
        where = refused_at(error) or "a value"
        raise InvalidRequest(f"{where} can't be sent: {error}", hint=hint, reason="INVALID_FIELD") from error

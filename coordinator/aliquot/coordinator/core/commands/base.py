"""The base of all commands, and what has one carried out for somebody."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from aliquot.coordinator.core.books.access import Actor

T_co = TypeVar("T_co", covariant=True)


class Command(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """A wish to change something, and what its caller is told: `Command[T]` gives a T, `Command[None]` nothing."""


class OnBehalf(Command[T_co], frozen=True):
    """Carry out a command and put down for whom, if it changes anything."""

    by: Actor
    subject: str
    """What it is done to, for people."""
    command: Command[T_co]

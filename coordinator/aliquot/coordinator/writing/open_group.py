"""Commit groups while they are made: the facts decided so far, and who waits for them."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any

from aliquot.coordinator.core.values.fact import Fact

Reply = asyncio.Future[Any]
"""Somebody who waits for the outcome of a command: of which type, the command says."""


@dataclass(slots=True)
class OpenGroup:
    """Facts that will become durable together, and the answers that may be given then.

    Refusals and dry runs add no facts, but they were decided on top of this group and of the one being committed, so
    they wait here too.
    """

    facts: list[Fact] = field(default_factory=list)
    answers: list[tuple[Reply, Any]] = field(default_factory=list)
    refusals: list[tuple[Reply, Exception]] = field(default_factory=list)

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for an answer of this group."""
        return bool(self.answers or self.refusals)

    def resolve(self) -> None:
        """What it stands on is durable: give the answers."""
        for reply, outcome in self.answers:
            if not reply.done():
                reply.set_result(outcome)
        for reply, error in self.refusals:
            fail(reply, error)

    def fail(self, error: Exception) -> None:
        """What it stands on will never be: nobody gets an answer, not even a refusal."""
        for reply, _ in (*self.answers, *self.refusals):
            fail(reply, error)


def fail(reply: Reply, error: Exception) -> None:
    """Refuse one caller, if it still waits. Nobody has to look at the refusal: callers may vanish.

    Each gets an exception of its own: raising one adds to its traceback and gives it a context.
    """
    if not reply.done():
        reply.set_exception(copy.copy(error))
        reply.exception()

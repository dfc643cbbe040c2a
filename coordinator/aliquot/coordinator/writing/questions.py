"""Questions that only the State can answer: asked beside the commands, and never in their way.

A dry run or an explanation has to be tried on the State. Such questions are answered between two of the writer's turns:
one after each turn while commands wait for the next, and for a bounded time while none do, in which those that come
gather. So a command that has had its turn put off waits for one question at most, however many there are. Equal
questions are answered together, and a recent answer is given again until something changes.

An answer is given when every fact that it depends on is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.writing.open_group import Reply, fail

log = logging.getLogger(__name__)

T = TypeVar("T")

QUESTIONS_MAX = 4_096
"""Callers that wait for an answer to be found, or to be durable; beyond it callers are told to come back."""
_IDLE_NS = 2_000_000
"""How long questions may take in one go while no command waits."""
_FRESH_MS = 1_000
"""While nothing changes, equal questions are given the same answer for so long: answers name times."""


class Questions:
    """See the module's docstring."""

    def __init__(self, perf_ns: Callable[[], int]) -> None:
        self._perf_ns = perf_ns
        self._waiting: dict[Query[Any], list[Reply]] = {}
        self._asked = 0
        self._found: deque[tuple[int, list[Reply], Callable[[Reply], None]]] = deque()
        """Answers, with the fact that must be durable before they are given."""
        self._known: dict[Query[Any], Callable[[Reply], None]] = {}
        self._known_seq = -1
        self._known_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, query: Query[T]) -> asyncio.Future[T]:
        """The future gives the answer, or raises why there is none. Raises Overloaded."""
        if self._asked >= QUESTIONS_MAX:
            raise Overloaded(f"{self._asked} questions wait already, which is the bound")
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(query, []).append(reply)
        self._asked += 1
        return reply

    def answer_some(self, decider: Decider, now_ms: int, durable_seq: int, *, commands_wait: bool) -> None:
        """Answer one question, or while no command waits as many as there is time for."""
        seq = decider.state.seq
        if seq != self._known_seq or now_ms - self._known_ms >= _FRESH_MS:
            self._known.clear()
            self._known_seq, self._known_ms = seq, now_ms
        started = self._perf_ns()
        while self._waiting:
            query = next(iter(self._waiting))
            replies = self._waiting.pop(query)
            if all(reply.done() for reply in replies):
                self._asked -= len(replies)
                continue  # whoever asked has left
            give = self._known.get(query)
            if give is None:
                give = _answer(decider, query, now_ms)
                if query.remembered and len(self._known) < QUESTIONS_MAX:
                    self._known[query] = give
            self._found.append((seq, replies, give))
            if commands_wait or self._perf_ns() - started > _IDLE_NS:
                break
        self.give(durable_seq)

    def give(self, durable_seq: int) -> None:
        """Everything up to this fact is durable: answers that were found on no more are given."""
        while self._found and self._found[0][0] <= durable_seq:
            _, replies, give = self._found.popleft()
            self._asked -= len(replies)
            for reply in replies:
                if not reply.done():
                    give(reply)

    def refuse(self, error: Exception) -> None:
        """There will be no answers: what they were, or would be, found on is not durable."""
        replies = [reply for _, asked, _ in self._found for reply in asked]
        replies += [reply for asked in self._waiting.values() for reply in asked]
        self._found.clear()
        self._waiting.clear()
        self._known.clear()
        self._asked = 0
        for reply in replies:
            fail(reply, error)


def _answer(decider: Decider, query: Query[T], now_ms: int) -> Callable[[asyncio.Future[T]], None]:
    """What tells somebody the answer."""
    try:
        found = decider.answer(query, now_ms)
    except DomainError as error:
        refusal: Exception = error.with_traceback(None)
    except Exception as error:
        log.exception("answering %s failed", type(query).__name__)
        refusal = error
    else:
        return lambda reply: reply.set_result(found)
    return lambda reply: fail(reply, refusal)

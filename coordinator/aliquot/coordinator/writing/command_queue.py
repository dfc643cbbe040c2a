"""Commands that wait, and the turns of a few milliseconds in which they are decided.

Each command is decided on the current State and its facts are applied at once, so that the next command of the same
group sees them. Between the turns the event loop takes in new commands and answers questions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from aliquot.coordinator.core.commands import Admit, Command, MoveQuotas, RaiseEpoch, StartLeading, Tick
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.troubles import WorkFailed
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.writing.interfaces import WriterConfig, WriterMetrics
from aliquot.coordinator.writing.open_group import OpenGroup, Reply, fail
from aliquot.coordinator.writing.turns import Turns, Waiting

log = logging.getLogger(__name__)

T = TypeVar("T")

_BEFORE_QUOTAS = (StartLeading, RaiseEpoch, MoveQuotas)
"""What is decided although a window of a quota has opened or closed: the first fact of a leader is that it leads."""


class MemoryBrokenError(Exception):
    """Facts could not be applied to the State, which therefore is no longer what the journal says."""


class CommandQueue:
    """The queue, and the timers that begin a turn when something is due or enough callers have gathered."""

    def __init__(
        self,
        metrics: WriterMetrics,
        perf_ns: Callable[[], int],
        config: WriterConfig,
        *,
        wake: Callable[[], None],
    ) -> None:
        """`wake` asks for a turn soon; `perf_ns` is a precise counter."""
        self.config = config
        self._metrics = metrics
        self._perf_ns = perf_ns
        self._wake = wake
        self._queue = Turns()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._linger: asyncio.TimerHandle | None = None
        self.cut_short = False
        """Whether the last turn ended because its group was full: the next one begins when that is committed."""

    # -- the queue

    def __len__(self) -> int:
        """Commands that wait."""
        return len(self._queue)

    @property
    def lingering(self) -> bool:
        """Whether commands wait a moment for more of them."""
        return self._linger is not None

    def longest_wait_ms(self, giver: str) -> int:
        """How long the oldest command has waited that another one of this principal would wait for."""
        oldest_ns = self._queue.oldest_ns(giver)
        return (self._perf_ns() - oldest_ns) // 1_000_000 if oldest_ns is not None else 0

    def add(self, command: Command[T], giver: str, *, linger: bool) -> asyncio.Future[T]:
        """Queue a command. With `linger` its turn may wait a moment for more of them. Raises Overloaded."""
        waiting, queue_max = self._queue, self.config.queue_max
        if len(waiting) >= queue_max:
            raise Overloaded(f"{len(waiting)} commands wait already, which is the bound (`queue_max`)")
        if giver and not waiting.has_room(giver, queue_max):
            raise Overloaded(f"too many of the {len(waiting)} commands that wait are of {giver}: others need room too")
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        waiting.add(giver, Waiting(command, reply, self._perf_ns()))
        if not linger:
            self._wake()
        elif self._linger is None:
            self._linger = loop.call_later(self.config.linger_ms / 1000, self._end_linger)
        return reply

    def refuse(self, error: Exception) -> None:
        """Refuse everything that waits."""
        while self._queue:
            fail(self._queue.take().reply, error)

    def end(self) -> None:
        """Begin no more turns."""
        for timer in (self._alarm, self._linger):
            if timer is not None:
                timer.cancel()

    def _end_linger(self) -> None:
        self._linger = None
        self._wake()

    # -- turns

    def take_turn(self, decider: Decider, group: OpenGroup, now_ms: int) -> None:
        """Decide for at most `turn_ms`: commands first, but what is due and who waits in line is never starved.

        Whoever comes after it waits for others anew. Raises MemoryBrokenError.
        """
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        budget_ns = self.config.turn_ms * 1_000_000
        started = self._perf_ns()
        queue, room = self._queue, self.config.group_facts_max
        while queue and len(group.facts) < room:
            command, reply, _ = queue.take()
            if reply.cancelled():
                continue
            self._carry_out(decider, group, command, reply, now_ms)
            if self._perf_ns() - started > budget_ns * 3 // 4:
                break
        deadline = started + budget_ns
        due_ms = decider.next_due_ms(now_ms)
        more = due_ms is not None and due_ms <= now_ms
        while more and len(group.facts) < room:
            ticked = self._carry_out(decider, group, Tick(), None, now_ms)
            if ticked is not None:
                more = ticked.more
            else:  # what failed is tried again later; the rest goes on
                due_ms = decider.next_due_ms(now_ms)
                more = due_ms is not None and due_ms <= now_ms
            if self._perf_ns() > deadline:
                break
        while decider.wants_admission() and len(group.facts) < room:
            admitted = self._carry_out(decider, group, Admit(), None, now_ms)
            more = more or (admitted is not None and admitted.more)
            if self._perf_ns() > deadline:
                break
        unfinished = bool(queue) or more or decider.wants_admission()
        self.cut_short = unfinished and len(group.facts) >= room
        if not unfinished:
            self._set_alarm(decider.next_due_ms(now_ms), now_ms)
        elif not self.cut_short:
            self._wake()

    def _carry_out(
        self, decider: Decider, group: OpenGroup, command: Command[T], reply: Reply | None, now_ms: int
    ) -> T | None:
        """Decide one command and apply its facts. Nobody is answered yet. Raises MemoryBrokenError."""
        if decider.quotas_move(now_ms) and not isinstance(command, _BEFORE_QUOTAS):
            self._carry_out(decider, group, MoveQuotas(), None, now_ms)  # nothing is decided under what is over
        started = self._perf_ns()
        try:
            decision = decider.decide(command, now_ms)
        except DomainError as error:
            if reply is not None:
                # Without its traceback, which would keep this frame, and with it the State, alive in a cycle.
                group.refusals.append((reply, error.with_traceback(None)))
            return None
        except WorkFailed as failure:
            _log_failure(failure, now_ms)
            return None
        except Exception as error:
            log.exception("deciding %s failed; nothing was changed", type(command).__name__)
            if reply is not None:
                group.refusals.append((reply, error))
            return None
        try:
            decider.carry_out(decision, now_ms)
        except Exception as error:
            log.exception("applying the facts of %s failed: memory is thrown away", type(command).__name__)
            if reply is not None:
                fail(reply, error)
            raise MemoryBrokenError from error
        if decision.facts:
            group.facts.extend(decision.facts)
        if reply is not None:
            group.answers.append((reply, decision.outcome))
        self._metrics.decided(self._perf_ns() - started)
        return decision.outcome

    def _set_alarm(self, due_ms: int | None, now_ms: int) -> None:
        """Take a turn when the next thing is due."""
        if self._alarm is not None:
            if due_ms == self._alarm_ms:
                return
            self._alarm.cancel()
            self._alarm = None
        if due_ms is not None:
            self._alarm_ms = due_ms
            self._alarm = asyncio.get_running_loop().call_later(max(due_ms - now_ms, 1) / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake()


def _log_failure(failure: WorkFailed, now_ms: int) -> None:
    """With its traceback the first time, and as something that needs an administrator once it is set aside."""
    trouble = failure.trouble
    if trouble.set_aside:
        log.error("SET ASIDE: %s. It is not tried again before an administrator says so, or a restart", trouble)
    else:
        rest_s = (trouble.again_ms - now_ms) / 1000
        cause = failure.__cause__ if trouble.failures == 1 else None
        log.error("%s; nothing was changed; it is tried again in %g s", trouble, rest_s, exc_info=cause)

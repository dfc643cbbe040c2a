"""The single writer: the one task that owns the State, and the only way anything changes.

Only what changes something is a command, and queues up. In turns of a few milliseconds each command is decided on the
current State and its facts are applied at once, so that the next command of the same group sees them. While one group
is being synced in the journal thread, the next is being decided. Answers and refusals alike are given only when
everything they were decided on is durable. Questions are answered beside them (`questions`).

When a commit fails, memory is ahead of the disk: every caller of the open groups is told so, the State is thrown
away and read again from the journal, and nothing is granted until a real write has worked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aliquot.common.clock import Clock
from aliquot.coordinator.core.commands import Admit, Command, RaiseEpoch, Tick
from aliquot.coordinator.core.config import CoreConfig
from aliquot.coordinator.core.errors import DomainError
from aliquot.coordinator.core.planner import Planner
from aliquot.coordinator.core.queries import Query
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.troubles import Trouble, WorkFailed
from aliquot.coordinator.errors import JournalUnavailable, NotLeader, Overloaded, ShuttingDown
from aliquot.coordinator.writing.commits import Commit, take_commit, whole_state
from aliquot.coordinator.writing.groups import OpenGroup, Reply, fail
from aliquot.coordinator.writing.journal.base import Group, Journal
from aliquot.coordinator.writing.journal.thread import JournalWorker
from aliquot.coordinator.writing.questions import Questions

log = logging.getLogger(__name__)

T = TypeVar("T")

_PRUNE_EVERY_NS = 200_000_000
_CROWD = 4
"""Callers that share a group on average, from which on a group lingers for more."""
_STUCK_NS = 3_000_000_000
"""A write that takes longer counts as none: whoever can ask elsewhere had better."""
_PRUNE_GROUPS = 200
"""Old records are dropped in steps that commits hardly notice."""


@dataclass(frozen=True, slots=True)
class WriterConfig:
    """Bounds of the writer."""

    queue_max: int = 20_000
    """Commands waiting to be decided; beyond it callers are told to come back."""
    wait_max_ms: int = 2_000
    """While commands wait longer than this to be decided, those who ask for more are told to come back."""
    turn_ms: int = 5
    """Longest stretch of deciding before the event loop gets its turn."""
    linger_ms: int = 4
    """While many callers are about, commands wait so long for company, to be decided and committed together: deciding
    many in one go costs less each, and so does syncing them. A lone caller never waits."""
    group_facts_max: int = 8_192
    retry_first_ms: int = 100
    retry_max_ms: int = 5_000


class Publisher(Protocol):
    """The outbox, as the writer sees it."""

    def publish(self, commit: Commit) -> None:
        """A group is durable."""

    def load(self, commit: Commit) -> None:
        """The State was read anew from the journal and differs from what was published."""


class Meter(Protocol):
    """What is measured of the writer."""

    def decided(self, took_ns: int) -> None:
        """One command was decided and applied."""

    def committed(self, took_ns: int, facts: int) -> None:
        """One group was made durable."""

    def commit_failed(self) -> None:
        """One group was not."""


class Health(Protocol):
    """Whoever must hear of whether commands are carried out."""

    def granting_changed(self, *, granting: bool) -> None:
        """Whether they are from now on."""

    def recovered(self) -> None:
        """The State was read anew: what was under way is lost."""


class Writer:
    """See the module's docstring. `state` is `None` while it is being read again."""

    def __init__(
        self,
        *,
        state: State,
        core: CoreConfig,
        journal: Journal,
        clock: Clock,
        publisher: Publisher,
        meter: Meter,
        health: Health,
        reload: Callable[[], State],
        thread: JournalWorker,
        perf_ns: Callable[[], int],
        config: WriterConfig,
    ) -> None:
        """`thread` is what the journal is written in, and ended with `stop_thread`; `perf_ns` is a precise counter."""
        self._core = core
        self.planner: Planner | None = Planner(state, core)
        self.durable_seq = state.seq
        self._journal = journal
        self._clock = clock
        self._publisher = publisher
        self._meter = meter
        self._reload = reload
        self._health = health
        self._config = config
        self._thread = thread
        self._perf_ns = perf_ns
        self._queue: deque[tuple[Command[Any], Reply, int]] = deque()
        """With when each came, in nanoseconds."""
        self._questions = Questions(perf_ns)
        self._open = OpenGroup()
        self._in_flight: OpenGroup | None = None
        self._wake = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._down_reason = ""
        self._collapse: Exception | None = None
        self._stopping = False
        self._prune_up_to = 0
        self._pruned_ns = 0
        self._write_began_ns = 0
        self._stuck = False
        self._linger: asyncio.TimerHandle | None = None
        self._company = 0.0
        """How many answers a group had lately."""

    # -- for everybody

    @property
    def state(self) -> State | None:
        """What is known, ahead of what is durable; `None` while it is being read again. To be read only."""
        return self.planner.state if self.planner is not None else None

    @property
    def set_aside(self) -> tuple[Trouble, ...]:
        """Work on which deciding failed too often: it waits for an administrator, or for a restart."""
        return self.planner.set_aside() if self.planner is not None else ()

    def set_aside_about(self, lease_id: str) -> tuple[Trouble, ...]:
        """That of one lease."""
        return tuple(trouble for trouble in self.set_aside if trouble.work.subject == lease_id)

    @property
    def granting(self) -> bool:
        """Whether commands are carried out at all."""
        return self.state is not None and not self._stopping and not self._stuck

    @property
    def not_granting_reason(self) -> str:
        """Why not, for people."""
        if self._stopping:
            return "shutting down"
        if self._stuck and not self._down_reason:
            return "a write to the journal takes longer than 3 s: is its disk, or its database, overloaded or gone?"
        return self._down_reason

    @property
    def queued(self) -> int:
        """Commands that wait to be decided."""
        return len(self._queue)

    def adopt(self, core: CoreConfig, config: WriterConfig) -> None:
        """Decide under these from the next turn on."""
        self._config, self._core = config, core
        if self.planner is not None:
            self.planner.adopt(core)

    def submit(self, command: Command[T]) -> asyncio.Future[T]:
        """Queue a command; the future gives its outcome once that is durable, or raises why it was refused.

        Raises Overloaded, JournalUnavailable or ShuttingDown at once where there is no point in waiting.
        """
        if self._stopping:
            raise ShuttingDown("this coordinator is shutting down", hint="try again in a moment")
        if self.state is None:
            raise self._unavailable()
        if len(self._queue) >= self._config.queue_max:
            raise Overloaded(f"{len(self._queue)} commands wait already, which is the bound (`queue_max`)")
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((command, reply, self._perf_ns()))
        if self._company < _CROWD or self._stopping:
            self._wake.set()
        elif self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(self._config.linger_ms / 1000, self._end_linger)
        return reply

    def ask(self, command: Command[T]) -> asyncio.Future[T]:
        """As `submit`, for what asks for more and can come later: refused too while what is queued waits long already.
        What agents report and callers give back is never refused for that, since it makes room.
        """
        if self._queue and self.granting:
            waited_ms = (self._perf_ns() - self._queue[0][2]) // 1_000_000
            if waited_ms > self._config.wait_max_ms:
                raise Overloaded(f"commands wait {waited_ms} ms to be decided", retry_after_ms=waited_ms)
        return self.submit(command)

    def query(self, query: Query[T]) -> asyncio.Future[T]:
        """Ask what could become of things, beside the commands; the future gives the answer once everything that it was
        found on is durable. Raises Overloaded, JournalUnavailable or ShuttingDown.
        """
        if self._stopping:
            raise ShuttingDown("this coordinator is shutting down", hint="try again in a moment")
        if not self.granting:
            raise self._unavailable()
        reply = self._questions.ask(query)
        if self._linger is None:
            self._wake.set()
        return reply

    def prune(self, up_to_seq: int) -> None:
        """Let go of journal records up to there when there is time; a snapshot holds what they said."""
        if not self._stopping:
            self._prune_up_to = max(self._prune_up_to, up_to_seq)
            self._wake.set()

    async def raise_leader_epoch(self, epoch: int) -> None:
        """Go on leading in this higher epoch, durably.

        Raises NotLeader, and stops everything, where the journal says that another coordinator leads by now; the
        errors of a journal that can't be written; and what `submit` raises.
        """
        try:
            await self._thread.run(lambda: self._journal.advance_leader_epoch(epoch))
        except NotLeader as error:
            self.lose_leadership(error)
            raise
        await self.submit(RaiseEpoch(epoch))

    def wake(self) -> None:
        """Look at the clock again."""
        self._wake.set()

    def look_at_journal(self) -> None:
        """Notice a write that does not come to an end, which no error tells. To be called about once a second."""
        stuck = bool(self._write_began_ns) and self._perf_ns() - self._write_began_ns > _STUCK_NS
        if stuck == self._stuck:
            return
        self._stuck = stuck
        if stuck:
            self._questions.refuse(self._unavailable())
        if self.state is not None:
            if stuck:
                log.error("nothing is granted: %s", self.not_granting_reason)
            self._health.granting_changed(granting=not stuck)

    def _written(self) -> None:
        """The write under way has come to an end, good or bad."""
        self._in_flight = None
        self._write_began_ns = 0
        if self._stuck:
            self.look_at_journal()

    async def run(self) -> None:
        """Until `close`. Raises NotLeader when another coordinator has taken over."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._collapse is not None and self._in_flight is None:
                await self._recover()
            elif self._stopping and self._in_flight is None and not self._open.facts and not self._queue:
                return
            elif self.planner is not None:
                self._take_turn(self.planner)
                await asyncio.sleep(0)  # what is ready to come in now still gets into this group
                self._commit_if_ready()
                self._answer_some()
                if self._stopping and self._in_flight is None:
                    self._wake.set()

    def close(self) -> None:
        """Refuse what comes from now on; `run` ends when what was queued is durable."""
        self._stopping = True
        self._prune_up_to = 0  # whoever leads next lets go of old records
        self._questions.refuse(ShuttingDown("this coordinator is shutting down", hint="try again in a moment"))
        self._wake.set()

    def lose_leadership(self, error: NotLeader) -> None:
        """Refuse everything from now on, also what is queued; `run` ends with this error after the commit under way."""
        if self._collapse is None or not isinstance(self._collapse, NotLeader):
            self._fall_down(error)

    def stop_thread(self) -> None:
        """After `run` has ended."""
        for timer in (self._alarm, self._linger):
            if timer is not None:
                timer.cancel()
        self._thread.stop()

    # -- turns

    def _take_turn(self, planner: Planner) -> None:
        """Decide for at most `turn_ms`: commands first, but what is due and who waits in line is never starved."""
        now_ms = max(self._clock.now_ms(), planner.state.now_ms)
        budget_ns = self._config.turn_ms * 1_000_000
        started = self._perf_ns()
        queue, room = self._queue, self._config.group_facts_max
        while queue and len(self._open.facts) < room:
            command, reply, _ = queue.popleft()
            if reply.cancelled():
                continue
            self._carry_out(planner, command, reply, now_ms)
            if self._collapse is not None:
                return
            if self._perf_ns() - started > budget_ns * 3 // 4:
                break
        deadline = started + budget_ns
        due_ms = planner.next_due_ms(now_ms)
        more = due_ms is not None and due_ms <= now_ms
        while more and len(self._open.facts) < room:
            ticked = self._carry_out(planner, Tick(), None, now_ms)
            if self._collapse is not None:
                return
            due_ms = planner.next_due_ms(now_ms)  # what failed rests, and the rest goes on
            more = ticked.more if ticked is not None else due_ms is not None and due_ms <= now_ms
            if self._perf_ns() > deadline:
                break
        while self._collapse is None and planner.wants_admission() and len(self._open.facts) < room:
            admitted = self._carry_out(planner, Admit(), None, now_ms)
            more = more or (admitted is not None and admitted.more)
            if self._perf_ns() > deadline:
                break
        if self._collapse is not None:
            return
        if queue or more or planner.wants_admission():
            if len(self._open.facts) < room:
                self._wake.set()
        else:
            self._set_alarm(planner, now_ms)

    def _carry_out(self, planner: Planner, command: Command[T], reply: Reply | None, now_ms: int) -> T | None:
        """Decide one command and apply its facts. Nobody is answered yet."""
        started = self._perf_ns()
        group = self._open
        try:
            decision = planner.decide(command, now_ms)
        except DomainError as error:
            if reply is not None:
                # Without its traceback, which would keep this frame, and with it the State, alive in a cycle.
                group.refusals.append((reply, error.with_traceback(None)))
            return None
        except WorkFailed as failure:
            _tell(failure, now_ms)
            return None
        except Exception as error:
            log.exception("deciding %s failed; nothing was changed", type(command).__name__)
            if reply is not None:
                group.refusals.append((reply, error))
            return None
        try:
            planner.carry_out(decision, now_ms)
        except Exception as error:
            log.exception("applying the facts of %s failed: memory is thrown away", type(command).__name__)
            if reply is not None:
                fail(reply, error)
            self._fall_down(JournalUnavailable("a defect made the coordinator read its journal again"))
            return None
        if decision.facts:
            if not group.facts:
                group.opened_ns = started
            group.facts.extend(decision.facts)
        if reply is not None:
            group.answers.append((reply, decision.outcome))
        self._meter.decided(self._perf_ns() - started)
        return decision.outcome

    def _answer_some(self) -> None:
        """Questions, while a commit is under way or nothing is to be done."""
        if self._questions and self.planner is not None and not self._stopping:
            now_ms = max(self._clock.now_ms(), self.planner.state.now_ms)
            self._questions.answer_some(self.planner, now_ms, self.durable_seq, commands_wait=bool(self._queue))
            if self._questions and self._linger is None:
                self._wake.set()

    def _set_alarm(self, planner: Planner, now_ms: int) -> None:
        due_ms = planner.next_due_ms(now_ms)
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
        self._wake.set()

    # -- commits

    def _commit_if_ready(self) -> None:
        """Start a commit unless one is under way, or company for this group is already waiting to be decided."""
        if self._in_flight is not None or self._collapse is not None:
            return
        group = self._open
        if not group.facts:
            if group.waited_for:
                self._open = OpenGroup()
                group.resolve()
            self._prune_some()
            return
        if self._prune_up_to and self._perf_ns() - self._pruned_ns > _PRUNE_EVERY_NS:
            self._prune_some()
            return
        state = self.state
        assert state is not None
        commit = take_commit(state)
        durable = Group(commit.seq - len(group.facts) + 1, tuple(group.facts))
        self._in_flight, self._open = group, OpenGroup()
        self._company += (len(group.answers) - self._company) / 4
        self._write_began_ns = started = self._perf_ns()

        def done(_: None, error: BaseException | None) -> None:
            self._written()
            self._wake.set()
            if error is None:
                self._meter.committed(self._perf_ns() - started, len(durable.facts))
                self.durable_seq = commit.seq
                self._publisher.publish(commit)
                group.resolve()
                self._questions.give(self.durable_seq)
                if self.state is not None:
                    self._commit_if_ready()
            else:
                self._meter.commit_failed()
                failure = error if isinstance(error, Exception) else JournalUnavailable(repr(error))
                group.fail(failure)
                self._fall_down(failure)

        self._thread.submit(lambda: self._journal.commit(durable), done)

    def _end_linger(self) -> None:
        self._linger = None
        self._wake.set()

    def _prune_some(self) -> None:
        """One small transaction, in the pauses between commits."""
        if not self._prune_up_to:
            return
        self._in_flight = group = OpenGroup()
        up_to = self._prune_up_to
        self._write_began_ns = self._pruned_ns = self._perf_ns()

        def done(dropped: int | None, error: BaseException | None) -> None:
            self._written()
            if error is not None:
                log.warning("old journal records could not be dropped: %s", error)
            if error is not None or not dropped:
                self._prune_up_to = 0
            group.resolve()
            self._wake.set()

        self._thread.submit(lambda: self._journal.prune(up_to, _PRUNE_GROUPS), done)

    # -- when the journal fails

    def _unavailable(self) -> JournalUnavailable:
        return JournalUnavailable(
            f"nothing is granted: {self.not_granting_reason}",
            hint="running jobs are not affected; it is retried by itself, so send the request again",
        )

    def _fall_down(self, error: Exception) -> None:
        """Memory is ahead of the disk, or broken: forget it."""
        log.error("nothing is granted: %s", error)
        # The commit that was under way when leadership was lost may fail for another reason: nothing to recover from.
        if not isinstance(self._collapse, NotLeader):
            self._collapse = error
            self._down_reason = str(error)
        self.planner = None
        self._open.fail(self._unavailable())
        self._questions.refuse(self._unavailable())
        self._open = OpenGroup()
        while self._queue:
            fail(self._queue.popleft()[1], self._unavailable())
        self._health.granting_changed(granting=False)
        self._wake.set()

    async def _recover(self) -> None:
        """Read everything again until a real write works. Raises NotLeader when it is no longer ours to write."""
        delay_ms = self._config.retry_first_ms
        while self._collapse is not None:
            if isinstance(self._collapse, NotLeader):
                raise self._collapse
            if self._stopping:
                self._collapse = None
                self._wake.set()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            delay_ms = min(delay_ms * 2, self._config.retry_max_ms)
            try:
                state = await self._thread.run(self._recover_blocking)
            except NotLeader:
                raise
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the journal, keep saying so and trying
                self._down_reason = str(error)
                log.warning("the journal still can't be used: %s", error)
                continue
            if isinstance(self._collapse, NotLeader):  # lost while the journal was being read
                raise self._collapse
            self._collapse = None
            self._restart_with(state)

    def _recover_blocking(self) -> State:
        self._journal.recover()
        return self._reload()

    def _restart_with(self, state: State) -> None:
        log.warning("the journal can be written again: granting goes on from fact %d", state.seq)
        self.planner = Planner(state, self._core)
        self._down_reason = ""
        if state.seq != self.durable_seq:  # the commit that failed has arrived on disk all the same
            self._publisher.load(whole_state(state))
            self.durable_seq = state.seq
        else:
            take_commit(state)  # everything in it was published before
        self._health.granting_changed(granting=True)
        self._health.recovered()
        self._wake.set()


def _tell(failure: WorkFailed, now_ms: int) -> None:
    """Say so: with its traceback the first time, and as something that needs somebody when it is set aside."""
    trouble = failure.trouble
    if trouble.set_aside:
        log.error("SET ASIDE: %s. It is not tried again before an administrator says so, or a restart", trouble)
    else:
        rest_s = (trouble.again_ms - now_ms) / 1000
        cause = failure.__cause__ if trouble.failures == 1 else None
        log.error("%s; nothing was changed; it is tried again in %g s", trouble, rest_s, exc_info=cause)

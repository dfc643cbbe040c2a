"""The single writer: the one task that owns the State, and the only way anything changes.

What changes something is a command: commands queue up and are decided in turns (`command_queue`), and their facts are
made durable in groups (`committer`). Answers and refusals alike are given only when everything they were decided on is
durable. Questions change nothing and are answered between turns (`questions`).

When a commit fails, memory is ahead of the disk: every caller of the open groups is told so, the State is thrown
away and read again from the journal, and nothing is granted until a real write has worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from aliquot.common.clock import Clock
from aliquot.common.tasks import let_in
from aliquot.coordinator.core.commands import Command, RaiseEpoch
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.troubles import Trouble
from aliquot.coordinator.errors import JournalUnavailable, NotLeader, Overloaded
from aliquot.coordinator.writing.command_queue import CommandQueue, MemoryBrokenError
from aliquot.coordinator.writing.committer import Committer
from aliquot.coordinator.writing.interfaces import GrantingListener, Publisher, WriterConfig, WriterMetrics
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.thread import JournalWorker
from aliquot.coordinator.writing.outage import Availability, recover
from aliquot.coordinator.writing.questions import Questions
from aliquot.coordinator.writing.turns import giver_of

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        metrics: WriterMetrics,
        listener: GrantingListener,
        reload: Callable[[], State],
        thread: JournalWorker,
        perf_ns: Callable[[], int],
        config: WriterConfig,
    ) -> None:
        """`thread` is what the journal is written in, and ended with `stop_thread`; `perf_ns` is a precise counter."""
        self.decider: Decider | None = Decider(state, core)
        self._core = core
        self._config = config
        self._journal = journal
        self._thread = thread
        self._clock = clock
        self._reload = reload
        self._listener = listener
        self._wake = asyncio.Event()
        self._commands = CommandQueue(metrics, perf_ns, config, wake=self._wake.set)
        self._questions = Questions(perf_ns)
        self._committer = Committer(
            journal,
            thread,
            publisher,
            metrics,
            perf_ns,
            durable_seq=state.seq,
            ended=self._write_ended,
            written=self._after_write,
            failed=self._fall_down,
        )
        self._availability = Availability()

    # -- what is so

    @property
    def state(self) -> State | None:
        """What is known, ahead of what is durable; `None` while it is being read again. To be read only."""
        return self.decider.state if self.decider is not None else None

    @property
    def durable_seq(self) -> int:
        """Everything up to this fact is durable."""
        return self._committer.durable_seq

    @property
    def queued(self) -> int:
        """Commands that wait to be decided."""
        return len(self._commands)

    def troubles(self, subject: str = "") -> list[Trouble]:
        """Work on which deciding failed, of one subject or (empty) all. What is set aside among it waits for an
        administrator, or for a restart.
        """
        return self.decider.troubles(subject) if self.decider is not None else []

    @property
    def granting(self) -> bool:
        """Whether commands are carried out at all."""
        return self.decider is not None and not self._availability.stopping and not self._availability.stuck

    @property
    def not_granting_reason(self) -> str:
        """Why not, for people."""
        return self._availability.reason

    # -- for everybody

    def submit(self, command: Command[T]) -> asyncio.Future[T]:
        """Queue a command; the future gives its outcome once that is durable, or raises why it was refused.

        Raises Overloaded, JournalUnavailable or ShuttingDown at once where there is no point in waiting.
        """
        return self._submit(command, giver_of(command))

    def _submit(self, command: Command[T], giver: str) -> asyncio.Future[T]:
        if self._availability.stopping or self.decider is None:
            raise self._availability.refusal()
        return self._commands.add(command, giver, linger=self._committer.crowded)

    def ask(self, command: Command[T]) -> asyncio.Future[T]:
        """As `submit`, for what asks for more and can come later: refused too while what its principal has queued waits
        long already. What agents report and callers give back is never refused for that, since it makes room.
        """
        giver = giver_of(command)
        if self.granting:
            waited_ms = self._commands.longest_wait_ms(giver)
            if waited_ms > self._config.wait_max_ms:
                raise Overloaded(f"commands wait {waited_ms} ms to be decided", retry_after_ms=waited_ms)
        return self._submit(command, giver)

    def query(self, query: Query[T]) -> asyncio.Future[T]:
        """Ask what could become of things, beside the commands; the future gives the answer once everything that it was
        found on is durable. Raises Overloaded, JournalUnavailable or ShuttingDown.
        """
        if not self.granting:
            raise self._availability.refusal()
        reply = self._questions.ask(query)
        if not self._commands.lingering:
            self._wake.set()
        return reply

    def adopt(self, core: CoreConfig, config: WriterConfig) -> None:
        """Decide under these from the next turn on."""
        self._core, self._config, self._commands.config = core, config, config
        if self.decider is not None:
            self.decider.adopt(core)

    def prune(self, up_to_seq: int) -> None:
        """Drop journal records up to there when there is time; a snapshot holds what they said."""
        if not self._availability.stopping:
            self._committer.prune(up_to_seq)
            self._wake.set()

    def wake(self) -> None:
        """Look at the clock again."""
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

    # -- from beginning to end

    async def run(self) -> None:
        """Until `close`. Raises NotLeader when another coordinator has taken over."""
        while True:
            if self._wake.is_set():  # the turn before has left work: who only reads does not wait for all of it
                await let_in()
            await self._wake.wait()
            await asyncio.sleep(0)  # what is ready to come in now still gets into this turn
            self._wake.clear()
            committer = self._committer
            if self._availability.failure is not None and not committer.writing:
                await self._recover()
            elif self._availability.stopping and not (committer.writing or committer.open.facts or self._commands):
                return
            elif self.decider is not None:
                # Deciding runs ahead of the disk: each command sees the facts of those before it at once, and nobody is
                # told of any before its group is durable. So a slow disk costs waiting, and never a wrong decision.
                self._take_turn(self.decider)
                # At most one write is under way; what is decided meanwhile is the next group. The slower the disk, the
                # larger the groups, so the rate of grants hardly depends on it.
                self._commit_if_ready()
                # Questions come last: they are asked by people and launchers who poll, and may wait for a grant.
                self._answer_some()
                if self._availability.stopping and not committer.writing:
                    self._wake.set()

    def close(self) -> None:
        """Refuse what comes from now on; `run` ends when what was queued is durable."""
        self._availability.stopping = True
        self._committer.stop_pruning()
        self._questions.refuse(self._availability.refusal())
        self._wake.set()

    def lose_leadership(self, error: NotLeader) -> None:
        """Refuse everything from now on, also what is queued; `run` ends with this error after the commit under way."""
        if not isinstance(self._availability.failure, NotLeader):
            self._fall_down(error)

    def stop_thread(self) -> None:
        """After `run` has ended."""
        self._commands.end()
        self._thread.stop()

    # -- one turn after the other

    def _take_turn(self, decider: Decider) -> None:
        try:
            self._commands.take_turn(decider, self._committer.open, self._now_ms(decider))
        except MemoryBrokenError:
            self._fall_down(JournalUnavailable("a defect made the coordinator read its journal again"))

    def _commit_if_ready(self) -> None:
        if self.decider is not None:
            self._committer.commit_if_ready(self.decider.state)

    def _after_write(self) -> None:
        self._questions.give(self.durable_seq)
        self._commit_if_ready()

    def _answer_some(self) -> None:
        """Questions, while a commit is under way or nothing is to be done."""
        if self._questions and self.decider is not None and not self._availability.stopping:
            now_ms, queued = self._now_ms(self.decider), bool(self._commands)
            self._questions.answer_some(self.decider, now_ms, self.durable_seq, commands_wait=queued)
            if self._questions:
                self._wake.set()

    def _now_ms(self, decider: Decider) -> int:
        """The time never goes back, also where the clock does."""
        return max(self._clock.now_ms(), decider.state.now_ms)

    # -- when the journal fails

    def look_at_journal(self) -> None:
        """Notice a write that does not come to an end, which no error tells. To be called about once a second."""
        stuck = self._committer.overdue
        if stuck == self._availability.stuck:
            return
        self._availability.stuck = stuck
        if stuck:
            self._questions.refuse(self._availability.refusal())
        if self.state is not None:
            if stuck:
                log.error("nothing is granted: %s", self.not_granting_reason)
            self._listener.granting_changed(granting=not stuck)

    def _write_ended(self) -> None:
        if self._availability.stuck:
            self.look_at_journal()
        if self._commands.cut_short or self._availability.stopping or self._availability.failure is not None:
            self._wake.set()

    def _fall_down(self, error: Exception) -> None:
        """Memory is ahead of the disk, or broken: forget it."""
        log.error("nothing is granted: %s", error)
        self._availability.fail(error)
        self.decider = None
        refusal = self._availability.refusal()
        self._committer.fail_open(refusal)
        self._questions.refuse(refusal)
        self._commands.refuse(refusal)
        self._listener.granting_changed(granting=False)
        self._wake.set()

    async def _recover(self) -> None:
        state = await recover(self._availability, self._thread, self._read_again, self._wake, self._config)
        self._availability.failure = None
        if state is not None:
            self._restart_with(state)
        self._wake.set()

    def _read_again(self) -> State:
        self._journal.recover()
        return self._reload()

    def _restart_with(self, state: State) -> None:
        log.warning("the journal can be written again: granting goes on from fact %d", state.seq)
        self.decider = Decider(state, self._core)
        self._availability.failure_reason = ""
        self._committer.restart_from(state)
        self._listener.granting_changed(granting=True)
        self._listener.recovered()

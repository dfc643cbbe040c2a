"""Makes groups of facts durable, one at a time: while one is being synced in the journal's thread, the next is decided.

A group that is durable is published, and then its callers are answered. Between commits, old journal records are
dropped in small steps.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import JournalUnavailable
from aliquot.coordinator.writing.commits import take_commit, whole_state
from aliquot.coordinator.writing.interfaces import Publisher, WriterMetrics
from aliquot.coordinator.writing.journal.base import Group, Journal
from aliquot.coordinator.writing.journal.thread import JournalWorker
from aliquot.coordinator.writing.open_group import OpenGroup

_PRUNE_EVERY_NS = 200_000_000
_PRUNE_GROUPS = 200
"""Old records are dropped in steps that commits hardly notice."""
_CROWD = 4
"""While so many callers a group come, on average, the next group waits a moment for more."""
_SEVERAL = 1.5
"""...which begins from so many: on a quick disk a crowd's groups hold no more before they are waited for."""
_OVERDUE_NS = 3_000_000_000
"""A write that takes longer is treated as one that fails, so that callers can ask elsewhere."""


class Committer:
    """See the module's docstring. `open` is the group that is being decided."""

    def __init__(
        self,
        journal: Journal,
        thread: JournalWorker,
        publisher: Publisher,
        metrics: WriterMetrics,
        perf_ns: Callable[[], int],
        *,
        durable_seq: int,
        ended: Callable[[], None],
        written: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`ended` is called after each write, before anybody is told its outcome, and then `written`, or `failed` where
        a commit has.
        """
        self.open = OpenGroup()
        self.durable_seq = durable_seq
        self._journal = journal
        self._thread = thread
        self._publisher = publisher
        self._metrics = metrics
        self._perf_ns = perf_ns
        self._ended = ended
        self._written = written
        self._failed = failed
        self.writing = False
        """Whether a write is under way."""
        self._began_ns = 0
        self._prune_up_to = 0
        self._pruned_ns = 0
        self._callers = 0.0
        """How many answers a group had lately."""
        self.crowded = False
        """Whether many callers ask at the same time."""

    @property
    def overdue(self) -> bool:
        """Whether the write under way has taken over 3 s, which no error tells."""
        return self.writing and self._perf_ns() - self._began_ns > _OVERDUE_NS

    def commit_if_ready(self, state: State) -> None:
        """Commit the open group, unless a write is under way. `state` is what its facts were applied to."""
        if self.writing:
            return
        group = self.open
        if not group.facts:
            if group.waited_for:
                self.open = OpenGroup()
                group.resolve()
            self._prune_some()
        elif self._prune_up_to and self._perf_ns() - self._pruned_ns > _PRUNE_EVERY_NS:
            self._prune_some()
        else:
            self.open = OpenGroup()
            self._commit(group, state)

    def _commit(self, group: OpenGroup, state: State) -> None:
        commit = take_commit(state)
        durable = Group(commit.seq - len(group.facts) + 1, tuple(group.facts))
        self._note_callers(len(group.answers))
        started = self._begin()

        def done(_: None, error: BaseException | None) -> None:
            self._end()
            if error is None:
                # Readers first, then callers: whoever is told of a grant and asks for it must find it.
                self._metrics.committed(self._perf_ns() - started, len(durable.facts))
                self.durable_seq = commit.seq
                self._publisher.publish(commit)
                group.resolve()
                self._written()
            else:
                # It may be on disk all the same. Memory is ahead of what is known to be there, so the writer forgets it
                # all and reads the journal again; callers repeat with their keys.
                self._metrics.commit_failed()
                failure = error if isinstance(error, Exception) else JournalUnavailable(repr(error))
                group.fail(failure)
                self._failed(failure)

        self._thread.submit(lambda: self._journal.commit(durable), done)

    def _note_callers(self, answered: int) -> None:
        """Once groups that were not waited for hold several, a crowd is expected; if none comes, all begins anew."""
        self._callers += (answered - self._callers) / 4
        if not self.crowded and self._callers >= _SEVERAL:
            self.crowded, self._callers = True, float(_CROWD)
        elif self.crowded and self._callers < _CROWD:
            self.crowded, self._callers = False, 0.0

    def fail_open(self, error: Exception) -> None:
        """What the open group was decided on is lost: refuse its callers."""
        group, self.open = self.open, OpenGroup()
        group.fail(error)

    def restart_from(self, state: State) -> None:
        """Go on from a State that was read from the journal after a commit failed."""
        if state.seq != self.durable_seq:  # the commit that failed has arrived on disk all the same
            self._publisher.load(whole_state(state))
            self.durable_seq = state.seq
        else:
            take_commit(state)  # everything in it was published before

    # -- old records

    def prune(self, up_to_seq: int) -> None:
        """Drop journal records up to there when there is time."""
        self._prune_up_to = max(self._prune_up_to, up_to_seq)

    def stop_pruning(self) -> None:
        """Leave old records to whoever leads next."""
        self._prune_up_to = 0

    def _prune_some(self) -> None:
        """One small transaction, in the pauses between commits."""
        if not self._prune_up_to:
            return
        up_to = self._prune_up_to
        self._pruned_ns = self._begin()

        def done(dropped: int | None, error: BaseException | None) -> None:
            self._metrics.duties.tell("pruning", "" if error is None else f"old records can't be dropped: {error}")
            if error is not None or not dropped:
                self._prune_up_to = 0
            self._end()
            self._written()

        self._thread.submit(lambda: self._journal.prune(up_to, _PRUNE_GROUPS), done)

    def _begin(self) -> int:
        self.writing = True
        self._began_ns = self._perf_ns()
        return self._began_ns

    def _end(self) -> None:
        self.writing = False
        self._ended()

"""While many callers come, their commands are gathered for a moment and made durable together; few never wait."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from aliquot.common.clock import ManualClock
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.config import CoreConfig
from aliquot.coordinator.core.facts import LeaderStarted
from aliquot.coordinator.core.state import State
from aliquot.coordinator.writing.committer import Committer
from aliquot.coordinator.writing.config import WriterConfig
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.coordinator.writing.journal.thread import JournalThread, JournalWorker
from aliquot.coordinator.writing.writer import Writer
from tests.coordinator.test_questions import Silent
from tests.core.harness import node

T = TypeVar("T")


class AtOnce(JournalWorker):
    """Every write has ended before anybody looks."""

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        done(None, None)

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def stop(self) -> None: ...


class Counting(MemoryJournal):
    """How many groups were committed."""

    groups_made = 0

    def commit(self, group: Any) -> None:
        self.groups_made += 1
        super().commit(group)


def test_company_is_waited_for_as_long_as_it_comes() -> None:
    silent = Silent()
    committer = Committer(
        MemoryJournal(),
        AtOnce(),
        silent,
        silent,
        time.perf_counter_ns,
        durable_seq=0,
        ended=lambda: None,
        written=lambda: None,
        failed=lambda error: None,
    )
    loop = asyncio.new_event_loop()

    def groups_of(callers: int, times: int = 16) -> bool:
        for _ in range(times):
            committer.open.facts.append(LeaderStarted(at_ms=1, leader_epoch=1))
            committer.open.answers += [(loop.create_future(), None) for _ in range(callers)]
            committer.commit_if_ready(State.fresh())
        return committer.crowded

    try:
        assert not groups_of(1)  # two or three callers find no more than one commit of another's under way
        assert groups_of(5)
        assert groups_of(4)
        assert not groups_of(1)
        # Three groups of three have come together by chance; for three, who are all of them, nobody goes on waiting.
        assert sum(groups_of(3, times=1) for _ in range(20)) <= 5
    finally:
        loop.close()


@contextlib.asynccontextmanager
async def writing(journal: MemoryJournal) -> AsyncIterator[Writer]:
    def reload() -> State:
        raise AssertionError("the journal works")

    silent = Silent()
    made = Writer(
        state=State.fresh(),
        core=CoreConfig(),
        journal=journal,
        clock=ManualClock(1_000_000),
        publisher=silent,
        metrics=silent,
        listener=silent,
        thread=JournalThread(),
        perf_ns=time.perf_counter_ns,
        reload=reload,
        config=WriterConfig(group_facts_max=8),
    )
    run = asyncio.create_task(made.run())
    try:
        await made.submit(c.StartLeading(1))
        yield made
    finally:
        made.close()
        await run
        made.stop_thread()


async def test_what_a_full_group_had_no_room_for_is_decided_after_it() -> None:
    journal = Counting()
    async with writing(journal) as made:
        await asyncio.gather(*(made.submit(c.DeclareNode(node(f"n{number}"))) for number in range(50)))
        assert made.state is not None
        assert len(made.state.nodes) == 50
    assert journal.groups_made >= 50 // 8

"""While many callers come, their commands are gathered for a moment and made durable together; few never wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leading import LeaderStarted
from aliquot.coordinator.core.state import State
from aliquot.coordinator.writing.committer import Committer
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.coordinator.writing.journal.thread import JournalWorker
from tests.coordinator.journals import HeldJournal
from tests.coordinator.writers import Silent, writing
from tests.core.harness import node

T = TypeVar("T")


class AtOnce(JournalWorker):
    """Every write has ended before anybody looks."""

    def submit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        done(None, None)

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def stop(self) -> None: ...


class Counting(HeldJournal):
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


async def test_what_a_full_group_had_no_room_for_is_decided_after_it() -> None:
    journal = Counting()
    async with writing(journal, WriterConfig(group_facts_max=8)) as made:
        assert made.state is not None
        before = len(made.state.nodes)
        await asyncio.gather(*(made.submit(c.DeclareNode(node(f"n{number}"))) for number in range(50)))
        assert len(made.state.nodes) == before + 50
    assert journal.groups_made >= 50 // 8

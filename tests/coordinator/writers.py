"""A writer by itself: it leads, knows one node, and tells nobody."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from aliquot.common.duties import Duties
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.state import State
from aliquot.coordinator.writing.commits import Commit
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.journal.thread import JournalThread
from aliquot.coordinator.writing.writer import Writer
from tests.coordinator.journals import HeldJournal
from tests.core.harness import node
from tests.manual_clock import ManualClock


class Silent:
    """Nobody who follows, and nothing measured."""

    def __init__(self) -> None:
        self.duties = Duties()

    def publish(self, commit: Commit) -> None: ...

    def load(self, commit: Commit) -> None: ...

    def decided(self, took_ns: int) -> None: ...

    def committed(self, took_ns: int, facts: int) -> None: ...

    def commit_failed(self) -> None: ...

    def granting_changed(self, *, granting: bool) -> None: ...

    def recovered(self) -> None: ...


@contextlib.asynccontextmanager
async def writing(
    journal: HeldJournal, config: WriterConfig | None = None, perf_ns: Callable[[], int] = time.perf_counter_ns
) -> AsyncIterator[Writer]:
    """For the length of a block; the journal works again at its end."""

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
        perf_ns=perf_ns,
        reload=reload,
        config=config or WriterConfig(),
    )
    run = asyncio.create_task(made.run())
    try:
        await made.submit(c.StartLeading(1))
        await made.submit(c.RegisterNode(node("one"), 1))
        await made.submit(c.ReconcileNode("n-one", 1, ()))
        yield made
    finally:
        journal.let_go()
        made.close()
        await run
        made.stop_thread()

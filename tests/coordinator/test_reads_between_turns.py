"""Who reads waits for one turn of the writer, however long the work is that it has to do."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import decider
from aliquot.coordinator.core.decide import decide
from aliquot.coordinator.wire.calls import in_turns
from aliquot.coordinator.writing.interfaces import WriterConfig
from tests.coordinator.journals import HeldJournal
from tests.coordinator.writers import writing
from tests.core.harness import node

ROUNDS_OF_A_CALL = 7
"""That gRPC takes until a call's message is here."""
TURN_MS = 1_000


async def read() -> None:
    for _ in range(ROUNDS_OF_A_CALL):
        await asyncio.sleep(0)


async def test_a_read_is_answered_after_the_turn_in_which_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []
    reads: list[asyncio.Task[None]] = []
    left: list[int] = []

    def decide_while_somebody_comes(state: Any, subject: Any, now_ms: int) -> Any:
        if isinstance(subject, c.DeclareNode):
            decided.append(made.queued)
            if len(decided) == 3:
                reads.append(asyncio.create_task(read()))
                reads[0].add_done_callback(lambda _: left.append(made.queued))
        return decide(state, subject, now_ms)

    a_command_a_turn = itertools.count(0, TURN_MS * 1_000_000).__next__
    async with writing(HeldJournal(), WriterConfig(turn_ms=TURN_MS), a_command_a_turn) as made:
        monkeypatch.setattr(decider, "decide", decide_while_somebody_comes)
        await asyncio.gather(*(made.submit(c.DeclareNode(node(f"more-{number}"))) for number in range(20)))
    assert decided == list(range(19, -1, -1))
    assert left == [decided[2]]


async def test_a_read_is_answered_between_two_parts_of_a_long_list() -> None:
    reads: list[asyncio.Task[None]] = []
    seen: list[int] = []
    async for number in in_turns(range(500)):
        if number == 120:
            reads.append(asyncio.create_task(read()))
        if reads and reads[0].done():
            seen.append(number)
    assert seen[0] == 150

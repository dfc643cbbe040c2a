"""One principal's storm of commands and everybody else's place before the writer."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.access import Actor
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.turns import OWN_AHEAD, SHARE, Turns, Waiting, giver_of
from tests.coordinator.journals import HeldJournal
from tests.coordinator.writers import writing
from tests.core.harness import request

NOBODYS: asyncio.Future[AllocateOutcome] = None  # type: ignore[assignment]  # nobody answers here


def command(number: int, by: str) -> c.Allocate:
    return c.Allocate(f"l-{number}", request(1, 1), by=by)


def add(turns: Turns, number: int, by: str) -> None:
    turns.add(by, Waiting(command(number, by), NOBODYS, number))


def take(turns: Turns) -> tuple[str, int]:
    taken = turns.take()
    return giver_of(taken.command), taken.came_ns


def test_a_storm_delays_a_bystander_by_one_command() -> None:
    turns = Turns()
    for number in range(20_000):
        add(turns, number, "storm")
    take(turns)
    add(turns, 0, "bystander")
    assert [take(turns)[0] for _ in range(3)] == ["storm", "bystander", "storm"]


def test_agents_and_the_pool_itself_come_first_and_keep_nobody_out() -> None:
    turns = Turns()
    for number in range(3):
        add(turns, number, "ann")
    for number in range(2 * OWN_AHEAD):
        add(turns, number, "")
    taken = [take(turns)[0] for _ in range(len(turns))]
    assert taken == [""] * OWN_AHEAD + ["ann"] + [""] * OWN_AHEAD + ["ann", "ann"]


@given(steps=st.lists(st.sampled_from(["", "a", "b", "c", None]), max_size=200), queue_max=st.integers(1, 60))
def test_everybodys_order_stays_and_nobody_has_two_turns_while_another_waits(
    steps: list[str | None], queue_max: int
) -> None:
    turns = Turns()
    waiting: dict[str, list[int]] = defaultdict(list)
    passed: dict[str, list[str]] = defaultdict(list)
    for number, by in enumerate(steps):
        if by is not None:
            in_all = sum(map(len, waiting.values()))
            if in_all < queue_max:
                assert turns.has_room(by, queue_max) or len(waiting[by]) >= SHARE * (queue_max - in_all)
                if turns.has_room(by, queue_max):
                    assert not by or len(waiting[by]) <= SHARE * (queue_max - in_all)
                    add(turns, number, by)
                    waiting[by].append(number)
            continue
        if not len(turns):
            continue
        giver, came = take(turns)
        assert came == waiting[giver].pop(0)
        passed[giver].clear()
        for other in ("a", "b", "c"):
            if other != giver and waiting[other] and giver:
                assert giver not in passed[other], f"{giver} had two turns while {other} waited"
                passed[other].append(giver)
            elif not waiting[other]:
                passed[other].clear()
    assert len(turns) == sum(map(len, waiting.values()))


def test_who_gives_a_command() -> None:
    actor = Actor("ann")
    assert giver_of(c.OnBehalf(actor, "n-1", c.Cordon("n-1"))) == "ann"
    assert giver_of(c.Release("l-1", by="bob")) == "bob"
    assert giver_of(c.Release("l-1")) == giver_of(c.Tick()) == ""


async def test_who_fills_its_share_is_told_to_come_back_and_a_bystander_is_served_first() -> None:
    order: list[str] = []
    async with writing(HeldJournal(), WriterConfig(queue_max=50)) as made:

        def submit(number: int, by: str) -> asyncio.Future[AllocateOutcome]:
            answer = made.ask(command(number, by))
            answer.add_done_callback(lambda _: order.append(by))
            return answer

        answers = [submit(number, "storm") for number in range(40)]
        with pytest.raises(Overloaded, match=r"commands that wait are of storm"):
            submit(40, "storm")
        answers.append(submit(41, "bystander"))
        made.submit(c.Tick()).add_done_callback(lambda _: order.append("the pool"))
        await asyncio.gather(*answers)
        await submit(42, "storm")
    assert order[:3] == ["the pool", "storm", "bystander"]
    assert order[3:] == ["storm"] * 40

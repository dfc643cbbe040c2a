"""A window of a quota that has opened is in force before anything is decided, also by who takes over late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, QuotaWindow, TenantSpec
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, to_snapshot
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.writing.command_queue import CommandQueue
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.open_group import OpenGroup
from tests.coordinator.writers import Silent
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare

MONDAY_7H_MS = int(datetime(2026, 11, 23, 7, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


def a_day_with_a_limit() -> Books:
    """By day nothing may be held; it is before eight."""
    books = Books()
    books.now_ms = MONDAY_7H_MS
    books.connect(node("one", 4))
    window = QuotaWindow("weekdays 08:00-18:00", limit=Amount(0, -1))
    declare(books, TenantSpec(name="a", quota=Quota(windows=(window,))))
    return books


def turn(decider: Decider, commands: Sequence[c.Command[object]], now_ms: int) -> list[str]:
    """The facts of one turn, by name."""
    queue = CommandQueue(Silent(), lambda: 0, WriterConfig(), wake=lambda: None)
    for command in commands:
        queue.add(command, "", linger=False)
    group = OpenGroup()
    queue.take_turn(decider, group, now_ms)
    queue.end()
    return [type(fact).__name__ for fact in group.facts]


async def test_a_leader_leads_before_it_puts_windows_in_force_and_then_decides() -> None:
    state = from_snapshot(to_snapshot(a_day_with_a_limit().state))
    decider = Decider(state, CoreConfig())
    asked: list[c.Command[object]] = [c.StartLeading(2), c.Allocate("l-late", request(1000, tenant="a"))]
    facts = turn(decider, asked, MONDAY_7H_MS + 90 * 60_000)
    assert facts[0] == "LeaderStarted"
    assert facts.index("QuotasInForce") < facts.index("LeaseQueued")
    assert not decider.quotas_move(MONDAY_7H_MS + 90 * 60_000)


async def test_nothing_comes_between_an_edge_and_what_is_decided_at_that_time() -> None:
    decider = Decider(a_day_with_a_limit().state, CoreConfig())
    before = turn(decider, [c.Allocate("l-1", request(1000, tenant="a"))], MONDAY_7H_MS + HOUR_MS - 1)
    assert "LeaseGranted" in before
    after = turn(decider, [c.Allocate("l-2", request(1000, tenant="a"))], MONDAY_7H_MS + HOUR_MS)
    assert after == ["QuotasInForce", "LeaseQueued"]
    in_the_evening = turn(decider, [], MONDAY_7H_MS + 11 * HOUR_MS)
    assert in_the_evening[0] == "QuotasInForce"
    assert "LeaseGranted" in in_the_evening

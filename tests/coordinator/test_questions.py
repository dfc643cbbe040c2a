"""Questions are answered beside commands, never in their way; reads of what is durable need no journal that works."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import decider
from aliquot.coordinator.core.books.tenancy.specs import TenantSpec
from aliquot.coordinator.core.commands.queries import DryRun, Explain, ExplainLease, Query
from aliquot.coordinator.core.decide import answer, decide
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import LeaseNotFound
from aliquot.coordinator.errors import JournalUnavailable, Overloaded, ShuttingDown
from aliquot.coordinator.rpc import lease_service
from aliquot.coordinator.settings.config import LimitSettings
from aliquot.coordinator.writing import committer, questions
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import admin_pb2, admin_pb2_grpc, leases_pb2, types_pb2
from tests.coordinator.journals import FailingJournal, HeldJournal
from tests.coordinator.pool import Pool, eventually, reason_of, running, settings_for
from tests.coordinator.writers import writing
from tests.core.harness import node, request

FOREVER_MS = 86_400_000


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the writer did, in order: "c" for a caller's command, "q" for a question."""
    happened: list[str] = []

    def noted(word: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def note(state: State, subject: object, now_ms: int) -> Any:
            if not isinstance(subject, c.Tick | c.Admit):
                happened.append(word)
            return really(state, subject, now_ms)

        return note

    monkeypatch.setattr(decider, "decide", noted("c", decide))
    monkeypatch.setattr(decider, "answer", noted("q", answer))
    return happened


def steps_of(step_ns: int) -> Callable[[], int]:
    """A counter that takes a step whenever it is read: how much is done in one go does not depend on the machine."""
    return itertools.count(0, step_ns).__next__


def storm(made: Writer, count: int) -> list[asyncio.Future[Any]]:
    return [made.query(Explain(request(1000, name=str(number)))) for number in range(count)]


async def crowd(made: Writer, journal: HeldJournal) -> None:
    """So many callers share a commit that from now on commands wait for one another."""
    journal.hold()
    first = made.submit(c.DeclareNode(node("first")))
    await eventually(journal.waiting.is_set, "the commit is under way")
    others = [made.submit(c.DeclareNode(node(f"other-{number}"))) for number in range(8)]
    await eventually(lambda: not made.queued, "all have been decided")
    journal.let_go()
    await asyncio.gather(first, *others)
    assert made._committer.crowded


@pytest.mark.parametrize("crowded", [False, True])
async def test_a_storm_of_questions_delays_no_command_by_more_than_one_of_them(
    order: list[str], *, crowded: bool
) -> None:
    journal = HeldJournal()
    async with writing(journal, WriterConfig(turn_ms=0, linger_ms=FOREVER_MS)) as made:  # one command a turn
        if crowded:
            await crowd(made, journal)
        order.clear()
        asked = storm(made, 300)
        done = [made.submit(c.DeclareNode(node(f"more-{number}"))) for number in range(100)]
        await asyncio.gather(*done)
        await asyncio.gather(*asked)
    assert order.count("c") == 100
    assert order.count("q") == 300
    until_the_last = "".join(order)[: "".join(order).rindex("c")]
    assert "qq" not in until_the_last


async def test_questions_have_the_time_in_which_commands_wait_for_one_another(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is followed by one that waits for others, which would be forever, when it is the questions' turn."""
    journal = HeldJournal()
    async with writing(journal, WriterConfig(linger_ms=FOREVER_MS), steps_of(100_000)) as made:
        await crowd(made, journal)
        monkeypatch.setattr(committer, "_CROWD", 0)  # as it stays, however few share a commit
        loop, really, numbers = asyncio.get_running_loop(), vars(decider)["decide"], itertools.count()

        def submit_next() -> None:
            made.submit(c.DeclareNode(node(f"more-{next(numbers)}")))
            assert made._commands.lingering

        def decide_then_submit(state: State, subject: Any, now_ms: int) -> Any:
            if isinstance(subject, c.DeclareNode) and not all(reply.done() for reply in asked):
                loop.call_soon(submit_next)
            return really(state, subject, now_ms)

        monkeypatch.setattr(decider, "decide", decide_then_submit)
        order.clear()
        asked = storm(made, 300)
        submit_next()
        await asyncio.gather(*asked)
        assert 1 < order.count("c") < 150, "there is more than one question a turn"


async def test_each_caller_is_refused_with_an_error_of_its_own() -> None:
    async with writing(HeldJournal()) as made:
        asked = [made.query(Explain(request(1000))) for _ in range(2)]
        commands = [made.submit(c.DeclareNode(node(f"more-{number}"))) for number in range(2)]
        made.close()
        refused = await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.gather(*commands)
    one, other = refused
    assert isinstance(one, ShuttingDown)
    assert isinstance(other, ShuttingDown)
    assert one is not other
    assert one.explain() == other.explain()


async def test_what_many_ask_alike_is_found_once_until_something_changes(order: list[str]) -> None:
    async with writing(HeldJournal()) as made:
        order.clear()
        same: Query[Any] = Explain(request(1000))
        answers = await asyncio.gather(*(made.query(same) for _ in range(50)))
        assert order == ["q"]
        assert await made.query(Explain(request(1000))) is answers[0]
        await made.submit(c.DeclareNode(node("two")))
        await made.query(same)
        assert order == ["q", "c", "q"]


async def test_who_has_left_is_not_answered(order: list[str]) -> None:
    async with writing(HeldJournal()) as made:
        order.clear()
        left = storm(made, 10)
        for reply in left:
            reply.cancel()
        with pytest.raises(LeaseNotFound):
            await made.query(ExplainLease("none"))
    assert order == ["q"]


async def test_beyond_the_bound_who_asks_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_MAX", 10)
    async with writing(HeldJournal()) as made:
        asked = storm(made, questions.QUESTIONS_MAX)
        with pytest.raises(Overloaded):
            made.query(Explain(request(500)))
        await asyncio.gather(*asked)
        assert (await made.query(Explain(request(500)))).fits_now


async def test_answers_that_wait_for_the_journal_count_towards_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_MAX", 10)
    journal = HeldJournal()
    async with writing(journal) as made:
        journal.hold()
        changing = made.submit(c.DeclareNode(node("two")))
        await eventually(journal.waiting.is_set, "the commit is under way")
        asked = storm(made, 10)
        await eventually(lambda: not made._questions, "all have been found")
        with pytest.raises(Overloaded):
            made.query(Explain(request(500)))
        journal.let_go()
        await asyncio.gather(changing, *asked)
        await asyncio.gather(*storm(made, 10))


async def test_a_lease_is_shown_without_why_it_waits_where_that_is_not_known_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_service, "_EXPLAINED_WITHIN_S", 0.05)
    journal = HeldJournal()
    async with running(settings_for(limits=LimitSettings(strict_tenants=False)), journal=journal) as pool:
        waiting = await _prepared(pool)
        journal.hold()
        changing = asyncio.ensure_future(_admin(pool).Apply(_tenant("c")))
        await eventually(journal.waiting.is_set, "the commit is under way")
        assert pool.leading.writer.granting
        assert not (await pool.get(waiting)).HasField("waiting")
        assert pool.leading.writer.granting, "it was not refused"
        journal.let_go()
        await changing


async def test_a_dry_run_tells_what_the_command_would_and_changes_nothing() -> None:
    async with writing(HeldJournal()) as made:
        command = c.Apply(tenants=((TenantSpec("vision"), c.ANY_VERSION),))
        assert made.state is not None
        before = made.state.seq
        tried = await made.query(DryRun(command))
        assert made.state.seq == before
        assert await made.submit(command) == tried


async def test_no_answer_tells_of_what_is_not_durable_and_a_stuck_journal_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = HeldJournal()
    async with writing(journal) as made:
        journal.hold()
        changing = made.submit(c.DeclareNode(node("two")))
        await eventually(journal.waiting.is_set, "the commit is under way")
        asked = made.query(Explain(request(1000)))
        await asyncio.sleep(0.05)
        assert not asked.done()
        monkeypatch.setattr(committer, "_OVERDUE_NS", 0)
        made.look_at_journal()
        with pytest.raises(JournalUnavailable, match="longer than"):
            await asked
        with pytest.raises(JournalUnavailable):
            made.query(Explain(request(1000)))
        journal.let_go()
        await changing
        assert (await made.query(Explain(request(1000)))).fits_now


async def test_what_was_asked_before_a_stop_is_refused() -> None:
    async with writing(HeldJournal()) as made:
        asked = made.query(Explain(request(1000)))
        made.close()
        with pytest.raises(ShuttingDown):
            await asked


async def test_a_stuck_journal_stops_no_reading_of_what_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = HeldJournal()
    async with running(settings_for(limits=LimitSettings(strict_tenants=False)), journal=journal) as pool:
        waiting = await _prepared(pool)
        journal.hold()
        changing = asyncio.ensure_future(_admin(pool).Apply(_tenant("c")))
        await eventually(journal.waiting.is_set, "the commit is under way")
        monkeypatch.setattr(committer, "_OVERDUE_NS", 0)
        pool.leading.writer.look_at_journal()
        await _reads_go_on(pool, waiting)
        journal.let_go()
        await changing
        assert "c" in await _tenants(pool)


async def test_a_journal_that_fails_stops_no_reading_of_what_is_durable() -> None:
    journal = FailingJournal()
    async with running(settings_for(limits=LimitSettings(strict_tenants=False)), journal=journal) as pool:
        waiting = await _prepared(pool)
        journal.broken = True
        with pytest.raises(grpc.aio.AioRpcError):
            await _admin(pool).Apply(_tenant("c"))
        await _reads_go_on(pool, waiting)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pool.leases.Explain(leases_pb2.ExplainRequest(lease_id=waiting))
        assert reason_of(refused.value) == "JOURNAL_UNAVAILABLE"
        journal.broken = False
        await eventually(lambda: pool.leading.writer.granting, "it goes on by itself")
        await _admin(pool).Apply(_tenant("d"))
        assert await _tenants(pool) == ["a", "d", "team"]
        assert (await pool.get(waiting)).waiting.summary


async def _prepared(pool: Pool) -> str:
    await pool.declare(1)
    await _admin(pool).Apply(_tenant("a"))
    await _admin(pool).PostCredit(admin_pb2.PostCreditRequest(tenant="a", money_micro=7, reference="one"))
    await pool.allocate("1")
    return (await pool.allocate("1", wait_until=leases_pb2.WAIT_UNTIL_QUEUED)).lease_id


async def _reads_go_on(pool: Pool, waiting: str) -> None:
    async with asyncio.timeout(20):
        assert await _tenants(pool) == ["a", "team"]
        assert not (await _admin(pool).ListMaintenance(admin_pb2.ListMaintenanceRequest())).windows
        invoice = await _admin(pool).GetInvoice(admin_pb2.GetInvoiceRequest(tenant="a", from_ms=0, to_ms=1 << 60))
        assert invoice.tenant == "a"
        lease = await pool.get(waiting)
        assert lease.state == types_pb2.LEASE_STATE_QUEUED
        assert not lease.HasField("waiting")


async def _tenants(pool: Pool) -> list[str]:
    tenancy = await _admin(pool).GetTenancy(admin_pb2.GetTenancyRequest())
    return [item.spec.name for item in tenancy.tenants]


def _tenant(name: str) -> admin_pb2.ApplyRequest:
    return admin_pb2.ApplyRequest(tenants=[admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name=name))])


def _admin(pool: Pool) -> admin_pb2_grpc.AdminServiceAsyncStub:
    return admin_pb2_grpc.AdminServiceStub(pool.channel)

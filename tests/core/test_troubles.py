"""Deciding that raises, because of a defect: nothing is lost, everybody else goes on, and what fails for good is set
aside where people see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import tick
from aliquot.coordinator.core.admission import decide as admission
from aliquot.coordinator.core.config import CoreConfig
from aliquot.coordinator.core.leases import granting
from aliquot.coordinator.core.leases.records import Lease, LeaseState
from aliquot.coordinator.core.outcomes import SetAside
from aliquot.coordinator.core.timers import Due
from aliquot.coordinator.core.troubles import TRIES_MAX, WorkFailed
from tests.core.harness import Books, node, request

ROUNDS_MAX = 100


class Broken(Exception):
    """What a defect raises."""


@pytest.fixture
def books() -> Books:
    books = Books(CoreConfig())
    books.do(c.DeclareNode(node("one", 4, agentless=True)))
    return books


def work_off(books: Books) -> int:
    """What the writer does in one moment: how often deciding failed until there was nothing more to do."""
    failed = 0
    for _ in range(ROUNDS_MAX):
        due_ms = books.planner.next_due_ms(books.now_ms)
        is_due = due_ms is not None and due_ms <= books.now_ms
        if not is_due and not books.planner.wants_admission():
            return failed
        try:
            books.do(c.Tick() if is_due else c.Admit())
        except WorkFailed:
            failed += 1
    raise AssertionError("the writer would spin")


def pass_time(books: Books, seconds: int) -> int:
    """Half a second at a time; how often deciding failed."""
    failed = 0
    for _ in range(seconds * 2):
        books.now_ms += 500
        failed += work_off(books)
    return failed


def poison(monkeypatch: pytest.MonkeyPatch, is_poisoned: Callable[[str], bool]) -> None:
    """Trying to place these leases raises."""
    right = granting.offer

    def offer(state: Any, request: Any, demand: Any, arrival: int, now_ms: int, **more: Any) -> Any:
        lease = next(lease for lease in state.leases.values() if lease.arrival == arrival)
        if is_poisoned(lease.lease_id):
            raise Broken(f"no placing {lease.lease_id}")
        return right(state, request, demand, arrival, now_ms, **more)

    monkeypatch.setattr(admission, "offer", offer)


def three_wait(books: Books) -> tuple[Lease, Lease, Lease]:
    """Behind one that holds everything: two equal ones, and one of another size."""
    holder = books.allocate(request(1000, count=4))
    bad, equal = books.allocate(request(1000, tenant="b")), books.allocate(request(1000, tenant="b"))
    other = books.allocate(request(400, tenant="c"))
    books.settle()
    books.do(c.Release(holder.lease_id))
    return bad, equal, other


def test_a_request_that_makes_deciding_fail_holds_up_nobody(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, equal, other = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    assert work_off(books) == 1, "it is not tried again at once"
    assert books.again(bad).state is LeaseState.QUEUED
    assert books.again(equal).state is LeaseState.GRANTED, "nor does it stand in the way of who stands behind it"
    assert books.again(other).state is LeaseState.GRANTED
    assert pass_time(books, 120) == TRIES_MAX - 1
    (trouble,) = books.planner.set_aside()
    assert trouble.work.subject == bad.lease_id
    assert trouble.failures == TRIES_MAX
    assert "Broken: no placing" in trouble.error
    assert pass_time(books, 600) == 0


def test_what_was_mended_goes_on_by_itself(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    assert work_off(books) == 1
    monkeypatch.undo()
    pass_time(books, 2)
    assert books.again(bad).state is LeaseState.GRANTED
    assert not books.planner.planning.memory.troubles


def test_an_administrator_has_it_tried_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    pass_time(books, 120)
    monkeypatch.undo()
    shown = books.do(c.RetrySetAside(carry_out=False)).outcome
    assert isinstance(shown, SetAside)
    assert [trouble.work.subject for trouble in shown.found] == [bad.lease_id]
    assert work_off(books) == 0
    assert books.again(bad).state is LeaseState.QUEUED, "it was only shown"
    books.do(c.RetrySetAside(bad.lease_id))
    work_off(books)
    assert books.again(bad).state is LeaseState.GRANTED
    assert not books.planner.set_aside()


def test_what_was_set_aside_and_is_gone_is_not_shown(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    pass_time(books, 120)
    assert books.planner.set_aside()
    books.do(c.Release(bad.lease_id))
    assert not books.planner.set_aside()


def test_a_restart_tries_everything_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    pass_time(books, 120)
    monkeypatch.undo()
    books.start(books.restored())
    work_off(books)
    assert books.again(bad).state is LeaseState.GRANTED


def test_a_timer_whose_decision_fails_is_not_lost(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    short = books.allocate(request(500, time_limit_ms=10_000))
    fine = books.allocate(request(500, time_limit_ms=10_000))
    right = tick._LOOK[Due.TIME_LIMIT]

    def look(state: Any, lease_id: str, now_ms: int) -> Any:
        if lease_id == short.lease_id:
            raise Broken
        return right(state, lease_id, now_ms)

    monkeypatch.setitem(tick._LOOK, Due.TIME_LIMIT, look)
    books.now_ms += 10_000
    assert work_off(books) == 1
    assert books.again(short).state is LeaseState.GRANTED
    assert books.again(fine).state is LeaseState.ENDED, "what is due beside it is done"
    monkeypatch.undo()
    pass_time(books, 1)
    assert books.again(short).state is LeaseState.ENDED


def test_a_timer_that_keeps_failing_is_set_aside_and_can_be_tried_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = books.allocate(request(500, time_limit_ms=10_000))

    def look(state: Any, lease_id: str, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setitem(tick._LOOK, Due.TIME_LIMIT, look)
    books.now_ms += 9_500
    assert pass_time(books, 120) == TRIES_MAX
    (trouble,) = books.planner.set_aside()
    assert str(trouble).startswith(f"what is due (TIME_LIMIT) of {lease.lease_id} failed {TRIES_MAX} times")
    monkeypatch.undo()
    assert pass_time(books, 60) == 0
    assert books.again(lease).state is LeaseState.GRANTED
    books.do(c.RetrySetAside())
    work_off(books)
    assert books.again(lease).state is LeaseState.ENDED


def test_where_the_order_itself_can_not_be_found_all_of_it_is_tried_again_with_back_off(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _, _ = three_wait(books)

    def start_pass(state: Any, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setattr(admission, "start_pass", start_pass)
    failed = pass_time(books, 300)
    assert TRIES_MAX < failed < 20
    assert not books.planner.set_aside()
    monkeypatch.undo()
    pass_time(books, 64)
    assert books.again(bad).granted_ms

"""Deciding that raises, because of a defect: nothing is lost, everybody else goes on, and what fails for good is set
aside where people see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import tick
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.commands.outcomes import SetAside
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission import admit as admission
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.queueing.lines import Head
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.troubles import (
    ORDER,
    REST_DOUBLED_MAX,
    REST_FIRST_MS,
    TRIES_MAX,
    Trouble,
    Troubles,
    WorkFailed,
    WorkKey,
    WorkKind,
)
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
        due_ms = books.decider.next_due_ms(books.now_ms)
        is_due = due_ms is not None and due_ms <= books.now_ms
        if not is_due and not books.decider.wants_admission():
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
    right = admission._try

    def attempt(known: Any, of: Any, head: Head, now_ms: int) -> Any:
        if is_poisoned(head.lease_id):
            raise Broken(f"no placing {head.lease_id}")
        return right(known, of, head, now_ms)

    monkeypatch.setattr(admission, "_try", attempt)


def set_aside(books: Books) -> list[Trouble]:
    return [trouble for trouble in books.decider.troubles() if trouble.set_aside]


def forgotten(books: Books) -> None:
    """No failure is remembered, so that nothing is decided the slow way."""
    books.decider.next_due_ms(books.now_ms)
    assert not books.decider.known.memory.troubles


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
    (trouble,) = set_aside(books)
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
    forgotten(books)


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
    assert not set_aside(books)


def test_what_was_set_aside_and_is_gone_is_not_shown(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    pass_time(books, 120)
    assert set_aside(books)
    books.do(c.Release(bad.lease_id))
    assert books.again(bad).ended
    assert not set_aside(books)
    forgotten(books)


def test_what_failed_and_was_released_meanwhile_is_forgotten(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, _, _ = three_wait(books)
    poison(monkeypatch, lambda lease_id: lease_id == bad.lease_id)
    assert work_off(books) == 1
    assert [trouble.work.subject for trouble in books.decider.troubles(bad.lease_id)] == [bad.lease_id]
    assert not set_aside(books)
    books.do(c.Release(bad.lease_id))
    forgotten(books)


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
    (trouble,) = set_aside(books)
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
    seconds = 300
    failed = pass_time(books, seconds)
    longest_s = (REST_FIRST_MS << REST_DOUBLED_MAX) // 1000
    assert TRIES_MAX < failed <= REST_DOUBLED_MAX + 1 + seconds // longest_s
    assert not set_aside(books)
    monkeypatch.undo()
    pass_time(books, longest_s)
    assert books.again(bad).granted_ms
    forgotten(books)


def test_a_pass_that_breaks_off_begins_anew_and_rests_longer_each_time(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, equal, other = three_wait(books)
    right, failing = AdmissionPass.head, 3

    def head(admission: AdmissionPass) -> Any:
        nonlocal failing
        found = right(admission)
        if failing and found is None:
            failing -= 1
            raise Broken
        return found

    monkeypatch.setattr(AdmissionPass, "head", head)
    began_ms = books.now_ms
    late = books.allocate(request(1000, count=4, tenant="late"))
    assert [work_off(books), pass_time(books, 1), pass_time(books, 1), pass_time(books, 1)] == [1, 1, 1, 0]
    assert all(books.again(lease).granted_ms == began_ms for lease in (bad, equal, other))
    assert books.again(late).waiting
    pass_time(books, 1)
    forgotten(books)


def test_the_order_is_forgotten_where_nobody_waits_any_more(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = three_wait(books)

    def start_pass(state: Any, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setattr(admission, "start_pass", start_pass)
    assert work_off(books) == 1
    for lease in leases:
        books.do(c.Release(lease.lease_id))
    forgotten(books)


def with_victim() -> tuple[Books, Lease, Lease]:
    """One that runs and is told to end for another, which has a hold."""
    books = Books()
    books.connect(node("one", 1))
    low = books.allocate(request(1000, preemptible=True))
    books.report(low, c.ReportStatus.ACTIVE)
    books.advance(10_000)
    high = books.allocate(request(1000, priority=10))
    books.settle()
    assert high.lease_id in books.state.holds
    return books, low, high


def test_what_failed_to_use_its_hold_and_is_granted_then_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    books, low, high = with_victim()

    def forbidden(*_: Any) -> Any:
        raise Broken

    monkeypatch.setattr(holding, "forbidden", forbidden)
    books.report(low, c.ReportStatus.GONE)
    assert work_off(books) == 1
    monkeypatch.undo()
    pass_time(books, 1)
    assert books.again(high).state is LeaseState.GRANTED
    forgotten(books)


def test_a_hold_that_was_looked_at_is_not_blamed_for_what_fails_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    books, low, high = with_victim()
    books.allocate(request(500, tenant="waits"))
    books.state.offer_again()

    def start_pass(state: Any, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setattr(admission, "start_pass", start_pass)
    assert work_off(books) == 1
    assert not books.decider.troubles(high.lease_id)
    (trouble,) = books.decider.troubles()
    assert trouble.work == ORDER
    books.report(low, c.ReportStatus.GONE)
    pass_time(books, 1)
    assert books.again(high).state is LeaseState.GRANTED, "its hold is used, whatever becomes of the order"


def test_a_hold_that_is_said_to_be_complete_and_is_not_is_given_up() -> None:
    books, _, high = with_victim()
    books.state.ready_holds[high.lease_id] = None
    books.do(c.Admit())
    assert high.lease_id not in books.state.holds
    assert books.again(high).waiting
    work_off(books)


def test_those_that_rest_are_passed_over_a_bounded_number_in_one_attempt(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "RESTING_MAX", 8)
    holder = books.allocate(request(1000, count=4))
    number = 5 * admission.RESTING_MAX
    equals = [books.allocate(request(100, tenant="b")) for _ in range(number)]
    last = books.allocate(request(100, tenant="b"))
    books.settle()
    bad = {lease.lease_id for lease in equals}
    poison(monkeypatch, lambda lease_id: lease_id in bad)
    books.decider.known.memory.troubles._known.update(  # as if all of them had failed before
        {
            key: Trouble(key, "Broken", TRIES_MAX, books.now_ms, 0)
            for key in (WorkKey(WorkKind.ADMISSION, lease_id) for lease_id in bad)
        }
    )
    books.do(c.Release(holder.lease_id))
    right, asked = Troubles.rests, 0

    def rests(troubles: Troubles, lease_id: str) -> bool:
        nonlocal asked
        asked += 1
        return right(troubles, lease_id)

    monkeypatch.setattr(Troubles, "rests", rests)
    most = 0
    while books.again(last).waiting:
        asked = 0
        assert books.do(c.Admit(attempts=1)).outcome.more
        most = max(most, asked)
    assert most <= admission.RESTING_MAX + 4
    assert books.again(last).state is LeaseState.GRANTED


def test_a_timer_that_is_gone_is_forgotten(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = books.allocate(request(500, time_limit_ms=10_000))

    def look(state: Any, lease_id: str, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setitem(tick._LOOK, Due.TIME_LIMIT, look)
    books.now_ms += 10_000
    fine = books.allocate(request(500, time_limit_ms=60_000))
    books.do(c.Release(fine.lease_id))
    assert work_off(books) == 1
    books.do(c.Release(lease.lease_id))
    forgotten(books)
    assert books.decider.next_due_ms(books.now_ms) != books.now_ms


class Subject(str):
    """Counts how often any of them is compared or hashed."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Subject.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Subject.looks += 1
        return super().__eq__(other)


def test_what_is_due_next_is_known_without_a_look_at_all_timers(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = books.allocate(request(500, time_limit_ms=10_000))

    def look(state: Any, lease_id: str, now_ms: int) -> Any:
        raise Broken

    monkeypatch.setitem(tick._LOOK, Due.TIME_LIMIT, look)
    books.now_ms += 10_000
    assert work_off(books) == 1
    looks = []
    for number in (50, 5_000):
        for count in range(number):
            books.state.timers.add(books.now_ms + 40_000 + 10 * count, Due.CONFIRM, Subject(f"{number}-{count}"))
        Subject.looks = 0
        assert books.decider.next_due_ms(books.now_ms) == books.now_ms + REST_FIRST_MS
        assert [trouble.work.subject for trouble in books.decider.troubles(lease.lease_id)] == [lease.lease_id]
        looks.append(Subject.looks)
    assert looks[0] == looks[1]

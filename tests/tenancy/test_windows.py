"""Limits and guarantees that differ by the time of day: in force to the millisecond, and a limit ends nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, QuotaWindow, TenantSpec
from aliquot.coordinator.core.commands.queries import ExplainLease
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, state_hash, to_snapshot
from aliquot.coordinator.core.values.errors import InvalidField, QuotaExceeded
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, queue, quota, tenant

HOUR_MS = 3_600_000
MONDAY_7H_MS = int(datetime(2026, 11, 23, 7, tzinfo=UTC).timestamp() * 1000)
DAY = "weekdays 08:00-18:00"
CALM = {"preemptible": True}


def window(when: str, *, guaranteed: int | None = None, limit: int | None = None) -> QuotaWindow:
    """What whole devices are guaranteed and allowed while it is open."""
    return QuotaWindow(
        when,
        Amount(guaranteed * 1000) if guaranteed is not None else None,
        Amount(limit * 1000 if limit >= 0 else -1, -1) if limit is not None else None,
    )


def by_day(name: str, base: Quota, *windows: QuotaWindow) -> TenantSpec:
    """A tenant whose quota has windows."""
    return TenantSpec(name=name, quota=Quota(base.guaranteed, base.limit, base.weight, windows=windows))


@pytest.fixture
def books() -> Books:
    """A pool of eight devices on a Monday at seven."""
    books = Books()
    books.now_ms = MONDAY_7H_MS
    books.connect(node("one", 8))
    return books


def ask(books: Books, count: int, **more: object) -> Lease:
    lease = books.allocate(request(1000, count=count, **more))  # type: ignore[arg-type]
    books.settle()
    if books.again(lease).state is LeaseState.GRANTED:
        books.report(lease, c.ReportStatus.ACTIVE)
    return books.again(lease)


def until(books: Books, hour: int) -> None:
    """Go to this hour of Monday, and do what is due on the way."""
    books.advance(MONDAY_7H_MS + (hour - 7) * HOUR_MS - books.now_ms)


def test_a_limit_comes_down_and_ends_nobody_and_goes_up_again(books: Books) -> None:
    declare(books, by_day("a", quota(0, 8), window(DAY, limit=2)))
    night = ask(books, 6)
    assert night.state is LeaseState.ACTIVE
    until(books, 8)
    assert books.again(night).state is LeaseState.ACTIVE
    day = ask(books, 1)
    assert day.state is LeaseState.QUEUED
    said = books.ask(ExplainLease(day.lease_id))
    assert (
        "may hold 2; 1 more were asked for (window `weekdays 08:00-18:00`, until 2026-11-23 18:00 UTC)" in said.summary
    )
    assert said.expected_start_ms == MONDAY_7H_MS + 11 * HOUR_MS
    assert "limit that is in force after this one" in said.missing[0].smallest_change
    until(books, 18)
    assert books.again(day).state is LeaseState.GRANTED


def test_what_only_another_window_allows_waits_and_what_none_allows_is_refused(books: Books) -> None:
    declare(books, by_day("a", quota(0, 2), window("daily 20:00-06:00", limit=6)))
    large = ask(books, 5)
    assert large.state is LeaseState.QUEUED
    with pytest.raises(QuotaExceeded):
        ask(books, 7)
    until(books, 20)
    assert books.again(large).state is LeaseState.GRANTED


def test_a_guarantee_that_goes_up_is_reclaimed(books: Books) -> None:
    declare(books, by_day("owner", quota(0), window(DAY, guaranteed=8)), tenant("guest"))
    guest = ask(books, 8, tenant="guest", **CALM)
    until(books, 7)
    owner = ask(books, 4, tenant="owner")
    assert (books.again(guest).state, owner.state) == (LeaseState.ACTIVE, LeaseState.QUEUED)
    until(books, 8)
    books.advance(books.config.reclaim_min_run_ms)
    assert books.again(guest).end_reason or books.again(guest).state is LeaseState.PREEMPTING
    assert books.state.holds[owner.lease_id].victims == (guest.lease_id,)


def test_windows_of_queues_count_for_all_that_wait_there(books: Books) -> None:
    spec = queue("batch")
    declare(books, type(spec)(name="batch", quota=Quota(windows=(window(DAY, limit=0),))))
    night = ask(books, 1, queue="batch")
    until(books, 8)
    assert night.state is LeaseState.ACTIVE
    assert ask(books, 1, queue="batch").state is LeaseState.QUEUED


def test_nothing_is_decided_under_a_window_that_is_over(books: Books) -> None:
    """The edge comes first, also where nothing was decided for a long while and many things are due at once."""
    declare(books, by_day("a", quota(0, 8), window(DAY, limit=0)))
    books.now_ms = MONDAY_7H_MS + 2 * HOUR_MS
    assert books.decider.quotas_move(books.now_ms)
    assert ask(books, 1).state is LeaseState.QUEUED


def test_owners_whose_windows_open_at_once_are_one_fact(books: Books) -> None:
    declare(books, *(by_day(f"t{number}", quota(0, 8), window(DAY, limit=1)) for number in range(20)))
    before = len(books.facts)
    until(books, 8)
    assert len(books.facts) == before + 1
    assert {item.window for item in books.state.tenancy.in_force.values()} == {0}


def test_a_copy_a_snapshot_and_a_replay_know_what_is_in_force(books: Books) -> None:
    declare(books, by_day("a", quota(1, 8), window(DAY, limit=2, guaranteed=2)))
    until(books, 9)
    view = books.read().tenancy(books.now_ms)
    found = next(account for account in view.tenants if account.spec.name == "a")
    assert found.in_force is not None
    assert (found.in_force.window, found.in_force.until_ms) == (0, MONDAY_7H_MS + 11 * HOUR_MS)
    assert found.guaranteed_scaled.share_milli == 2000
    again = from_snapshot(to_snapshot(books.state))
    assert state_hash(again) == state_hash(books.state)
    books.start(again)
    until(books, 18)
    assert books.state.tenancy.in_force["t", "a"].window == OUTSIDE


def test_declaring_anew_takes_effect_at_once_and_withdrawing_forgets(books: Books) -> None:
    declare(books, by_day("a", quota(0, 8), window("daily 07:00-09:00", limit=0)))
    waiting = ask(books, 1)
    assert waiting.state is LeaseState.QUEUED
    declare(books, tenant("a", 0, 8))
    books.settle()
    assert books.again(waiting).state is LeaseState.GRANTED
    assert not books.state.tenancy.in_force
    declare(books, by_day("b", quota(0, 8), window(DAY, limit=0)))
    books.do(c.Withdraw(c.Declared.TENANT, "b"))
    assert not books.state.tenancy.in_force
    assert not books.state.tenancy.edge_ms


def test_a_window_below_what_is_held_is_declared_and_ends_nothing(books: Books) -> None:
    running = ask(books, 6)
    declare(books, by_day("a", quota(0, 8), window("daily 07:00-09:00", limit=2)))
    assert books.again(running).state is LeaseState.ACTIVE
    assert ask(books, 1).state is LeaseState.QUEUED
    with pytest.raises(InvalidField, match="a limit can't be below what is held"):
        declare(books, by_day("a", quota(0, 2), window("daily 20:00-21:00", limit=8)))


def test_guarantees_that_take_turns_are_promised_and_those_that_meet_are_not(books: Books) -> None:
    declare(
        books,
        by_day("day", quota(0), window("daily 08:00-18:00", guaranteed=8)),
        by_day("night", quota(0), window("daily 18:00-08:00", guaranteed=8)),
    )
    with pytest.raises(InvalidField, match=r"9 devices .* from 2026-11-24 12:00 UTC on"):
        declare(books, by_day("noon", quota(0), window("tue 12:00-13:00", guaranteed=1)))


def test_a_queue_is_promised_no_more_than_the_one_above_at_any_time(books: Books) -> None:
    upper, lower = queue("upper", 4), queue("lower", 2, parent="upper")
    declare(books, upper, lower)
    wide = type(lower)(
        name="lower", parent="upper", quota=Quota(guaranteed=Amount(2000), windows=(window("sat", guaranteed=5),))
    )
    with pytest.raises(InvalidField, match=r"guaranteed 5 devices .* itself only 4 .* from 2026-11-28 00:00 UTC on"):
        declare(books, wide)


@pytest.mark.parametrize(
    ("windows", "why"),
    [
        ((QuotaWindow("weekdays 8-18", limit=Amount(1)),), "too much|not known"),
        ((QuotaWindow("weekdays 08:00-18:00 Nowhere/Land", limit=Amount(1)),), "Nowhere/Land"),
        ((QuotaWindow(DAY),), "changes nothing"),
        ((QuotaWindow(DAY, guaranteed=Amount(9000)),), "9000 are guaranteed, but the limit is 8000"),
        ((QuotaWindow(DAY, limit=Amount(-2)),), "not within"),
        (tuple(QuotaWindow(f"daily {hour:02}:00-{hour:02}:30", limit=Amount(1)) for hour in range(17)), "at most 16"),
    ],
)
def test_windows_that_cannot_be_are_refused(books: Books, windows: tuple[QuotaWindow, ...], why: str) -> None:
    spec = TenantSpec(name="a", quota=Quota(limit=Amount(8000, -1), windows=windows))
    with pytest.raises(InvalidField, match=why):
        declare(books, spec)

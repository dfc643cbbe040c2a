"""What is told apart by what leases are seen to do, and what follows: warnings, loans, ends. The core alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.books.use import IdleAction, IdlePolicy, IdleWarned, ShareLent, ShareRecalled, UseState
from aliquot.coordinator.core.deciding.answers.use import GetUse
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.use_windows import Seen, Span
from aliquot.coordinator.core.values.types import EndReason
from tests.core.harness import GIB, Books, node, request
from tests.use.seeing import LOOK_MS, Watcher, busy, quiet, released_by, unseen

HOUR = 60
"""In looks."""
POLICY = IdlePolicy(IdleAction.RELEASE, after_ms=7_200_000, warn_ms=(3_600_000, 6_300_000))


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one", lends=True))
    return books


@pytest.fixture
def watcher(books: Books) -> Watcher:
    return Watcher(books)


def declare(books: Books, policy: IdlePolicy | None, name: str = "default") -> None:
    books.do(c.Apply(queues=((QueueSpec(name, idle=policy), c.ANY_VERSION),)))


def test_programs_that_do_nothing_are_idle_after_a_window(books: Books, watcher: Watcher) -> None:
    lease = books.activate(books.allocate(request(500, GIB)))
    watcher.see(lease, busy(), looks=3)
    assert books.again(lease).use.state is UseState.ACTIVE
    watcher.see(lease, quiet(), looks=9)
    assert books.again(lease).use.state is UseState.ACTIVE, "a pause is no idleness"
    watcher.see(lease, quiet(), looks=1)
    use = books.again(lease).use
    assert use.state is UseState.IDLE
    assert use.since_ms == books.now_ms - 10 * LOOK_MS


def test_no_process_is_held_and_a_busy_device_without_any_is_a_ghost(books: Books, watcher: Watcher) -> None:
    held, ghost = (books.activate(books.allocate(request(1000, GIB))) for _ in range(2))
    watcher.see_all([(held, quiet(processes=0)), (ghost, quiet(processes=0, device_milli=1000, alone=True))], looks=10)
    assert books.again(held).use.state is UseState.HELD
    assert books.again(ghost).use.state is UseState.GHOST


def test_all_busy_at_the_power_of_an_idle_card_is_hung_and_full_power_is_not(books: Books, watcher: Watcher) -> None:
    hung, works = (books.activate(books.allocate(request(1000, GIB))) for _ in range(2))
    full = busy(1000, low_milli=1000, power_permille=80, alone=True)
    watcher.see_all([(hung, full), (works, full._replace(power_permille=700))], looks=10)
    assert books.again(hung).use.state is UseState.HUNG
    assert books.again(works).use.state is UseState.ACTIVE


def test_a_gap_in_what_is_seen_is_no_idleness(books: Books, watcher: Watcher) -> None:
    declare(books, POLICY)
    lease = books.activate(books.allocate(request(500, GIB)))
    watcher.see(lease, unseen(), looks=5 * HOUR)
    assert books.again(lease).use.state is UseState.UNKNOWN
    watcher.see(lease, quiet(), looks=10)
    assert books.again(lease).use.state is UseState.IDLE
    watcher.see(lease, unseen(), looks=2)
    assert books.again(lease).use.state is UseState.IDLE, "a short gap ends nothing"
    watcher.see(lease, unseen(), looks=5 * HOUR)
    lease = books.again(lease)
    assert lease.use.state is UseState.UNKNOWN
    assert lease.state is LeaseState.ACTIVE
    assert not lease.use.warned


def test_a_gang_is_idle_only_when_all_members_are(books: Books, watcher: Watcher) -> None:
    lease = books.activate(books.allocate(request(1000, GIB, gang_size=4)))
    three_of_four = [quiet(), quiet(), quiet(), busy()]
    watcher.see_each(lease, three_of_four, looks=3 * HOUR)
    assert books.again(lease).use.state is UseState.ACTIVE
    watcher.see_each(lease, [quiet(), quiet(), quiet(), None], looks=3 * HOUR)
    assert books.again(lease).use.state is UseState.UNKNOWN, "a member that is not seen may work"
    watcher.see_each(lease, [quiet()] * 4, looks=11)
    assert books.again(lease).use.state is UseState.IDLE


def test_a_quarter_lease_that_uses_a_quarter_is_fully_efficient(books: Books, watcher: Watcher) -> None:
    lease = books.activate(books.allocate(request(250, GIB)))
    watcher.see(lease, busy(250), looks=10)
    (row,) = books.ask(GetUse()).rows
    assert row.efficiency is not None
    assert (row.efficiency.median_permille, row.efficiency.known_permille) == (1000, 1000)
    assert row.wasted_milli_ms == 0


def test_notices_are_given_and_nothing_ends_by_default(books: Books, watcher: Watcher) -> None:
    lease = books.activate(books.allocate(request(500, GIB)))
    watcher.see(lease, quiet(), looks=5 * HOUR, told=True)
    lease = books.again(lease)
    assert lease.state is LeaseState.ACTIVE
    assert lease.use.warned == 2
    assert len(lease.warnings) == 2
    assert not lease.use.act_ms
    row = books.ask(GetUse(quiet_only=True)).rows[0]
    assert row.wasted_milli_ms == 500 * 5 * HOUR * LOOK_MS


@pytest.mark.parametrize("action", [IdleAction.SUSPEND, IdleAction.RELEASE])
def test_what_was_announced_and_told_is_done(books: Books, watcher: Watcher, action: IdleAction) -> None:
    declare(books, IdlePolicy(action, POLICY.after_ms, POLICY.warn_ms))
    lease = books.activate(books.allocate(request(1000, GIB, grace_ms=20_000)))
    watcher.see(lease, quiet(), looks=2 * HOUR - 1, told=True)
    assert books.again(lease).state is LeaseState.ACTIVE
    assert books.again(lease).use.act_ms == books.now_ms + LOOK_MS
    watcher.see(lease, quiet(), looks=2, told=True)
    lease = books.again(lease)
    assert lease.ending
    assert lease.end_reason == EndReason.IDLE
    arrival = lease.arrival
    books.report(lease, c.ReportStatus.GONE)
    lease = books.again(lease)
    assert lease.state is (LeaseState.QUEUED if action is IdleAction.SUSPEND else LeaseState.ENDED)
    assert lease.arrival == arrival, "it waits at its old place"


def test_a_warning_that_reached_nobody_ends_nothing(books: Books, watcher: Watcher) -> None:
    declare(books, POLICY)
    lease = books.activate(books.allocate(request(1000, GIB)))
    watcher.see(lease, quiet(), looks=5 * HOUR)
    assert books.again(lease).state is LeaseState.ACTIVE
    assert books.again(lease).use.warned == 2
    books.do(c.ConfirmNotice(lease.lease_id, 2, "notifier"))
    watcher.see(lease, quiet(), looks=14)
    assert books.again(lease).state is LeaseState.ACTIVE, "who was told late has as long as the warning says"
    watcher.see(lease, quiet(), looks=2)
    assert books.again(lease).ending


def test_activity_after_a_warning_begins_everything_anew(books: Books, watcher: Watcher) -> None:
    declare(books, POLICY)
    lease = books.activate(books.allocate(request(1000, GIB)))
    watcher.see(lease, quiet(), looks=2 * HOUR - 2, told=True)
    assert books.again(lease).use.warned == 2
    watcher.see(lease, busy(20), looks=1)
    watcher.see(lease, quiet(), looks=HOUR - 1, told=True)
    use = books.again(lease).use
    assert (use.state, use.warned) == (UseState.IDLE, 0)


def test_an_exempted_lease_is_left_alone_until_that_is_over(books: Books, watcher: Watcher) -> None:
    declare(books, POLICY)
    lease = books.activate(books.allocate(request(1000, GIB)))
    books.do(c.ExemptLease(lease.lease_id, 6 * 3_600_000, "a demo at noon", "ann"))
    watcher.see(lease, quiet(), looks=5 * HOUR, told=True)
    assert (books.again(lease).use.warned, books.again(lease).state) == (0, LeaseState.ACTIVE)
    watcher.see(lease, quiet(), looks=HOUR + 5, told=True)
    assert books.again(lease).use.warned > 0
    assert books.again(lease).state is LeaseState.ACTIVE, "the warnings come first"


def test_a_take_over_begins_windows_anew(books: Books, watcher: Watcher) -> None:
    declare(books, POLICY)
    lease = books.activate(books.allocate(request(1000, GIB)))
    watcher.see(lease, quiet(), looks=2 * HOUR - 2, told=True)
    books.start(books.restored())
    watcher.see(lease, quiet(), looks=HOUR, told=True)
    assert books.again(lease).state is LeaseState.ACTIVE, "what it saw itself is an hour, not three"
    watcher.see(lease, quiet(), looks=HOUR + 2, told=True)
    assert books.again(lease).ending


# -- loans


@pytest.fixture
def lender(books: Books, watcher: Watcher) -> Lease:
    """An idle lease on a pool that is full."""
    declare(books, IdlePolicy(IdleAction.LEND, after_ms=1_200_000, warn_ms=()))
    books.activate(books.allocate(request(1000, GIB, count=3)))
    lease = books.activate(books.allocate(request(1000, GIB)))
    watcher.see(lease, quiet(), looks=20)
    return books.again(lease)


def test_the_share_of_an_idle_lease_goes_to_an_opportunistic_one_and_back(
    books: Books, watcher: Watcher, lender: Lease
) -> None:
    assert lender.use.lent
    rigid = books.allocate(request(250, GIB))
    borrower = books.allocate(request(250, GIB, opportunistic=True, preemptible=True, grace_ms=30_000))
    books.settle()
    assert books.again(rigid).state is LeaseState.QUEUED, "it did not say that it would go"
    borrower = books.activate(borrower)
    plan = borrower.slices[0].plan
    assert (plan.lender, plan.share_milli) == (lender.slices[0].slice_id, 250)
    assert books.state.inventory.device(plan.device_uuid).share_used_milli == 1000
    assert books.ask(GetUse(lease_id=lender.lease_id)).rows[0].borrowed_milli == 250

    watcher.see(lender, busy(30), looks=1)
    assert books.again(lender).use.state is UseState.ACTIVE
    assert not books.again(lender).use.lent
    borrower = books.again(borrower)
    assert borrower.ending
    assert borrower.slices[0].deadline_ms == books.now_ms + 1_000, "with next to no grace"
    books.report(borrower, c.ReportStatus.GONE)
    books.settle()
    assert books.again(borrower).state is LeaseState.QUEUED
    assert not books.again(borrower).preemptions, "it may borrow again as often as there is something"
    assert state_hash(books.replayed()) == state_hash(books.state) == state_hash(books.restored())


def test_memory_is_lent_only_where_no_process_is(books: Books, watcher: Watcher) -> None:
    declare(books, IdlePolicy(IdleAction.LEND, after_ms=1_200_000, warn_ms=()))
    books.activate(books.allocate(request(1000, GIB, count=2)))
    held, idle = (books.activate(books.allocate(request(1000, 40 * GIB))) for _ in range(2))
    watcher.see_all([(held, quiet(processes=0)), (idle, quiet())], looks=20)
    first, second = (books.allocate(request(500, 30 * GIB, opportunistic=True, preemptible=True)) for _ in range(2))
    books.settle()
    plan = books.again(first).slices[0].plan
    assert plan.lender == held.slices[0].slice_id
    assert plan.lender_memory
    assert books.again(second).state is LeaseState.QUEUED, (
        "what is left of its memory is too little, and idle is not held"
    )
    watcher.see(held, quiet(processes=1, started=True), looks=1)
    assert books.again(first).ending, "a program has come that needs its memory"


def test_a_lender_that_ends_leaves_no_hole(books: Books, watcher: Watcher, lender: Lease) -> None:
    borrower = books.allocate(request(250, GIB, opportunistic=True, preemptible=True))
    books.settle()
    borrower = books.activate(borrower)
    books.do(c.Release(lender.lease_id))
    books.report(lender, c.ReportStatus.GONE)  # sooner than what uses its share
    plan = books.again(borrower).slices[0].plan
    assert not plan.lender
    assert books.state.inventory.device(plan.device_uuid).share_used_milli == 250
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_what_is_borrowed_is_not_lent(books: Books, watcher: Watcher, lender: Lease) -> None:
    borrower = books.allocate(request(500, GIB, opportunistic=True, preemptible=True))
    books.settle()
    borrower = books.activate(borrower)
    watcher.see_all([(lender, quiet()), (borrower, quiet())], looks=40)
    assert books.again(borrower).use.state is UseState.IDLE
    assert not books.again(borrower).use.lent


def test_a_lender_on_its_way_out_sends_those_away_who_use_its_share(
    books: Books, watcher: Watcher, lender: Lease
) -> None:
    borrower = books.allocate(request(250, GIB, opportunistic=True, preemptible=True))
    books.settle()
    borrower = books.activate(borrower)
    books.do(c.Release(lender.lease_id))
    books.settle()
    assert books.again(borrower).ending


def test_a_loan_goes_on_over_a_take_over_and_ends_with_the_first_activity(
    books: Books, watcher: Watcher, lender: Lease
) -> None:
    borrower = books.allocate(request(250, GIB, opportunistic=True, preemptible=True))
    books.settle()
    borrower = books.activate(borrower)
    books.start(books.restored())
    watcher.see(lender, quiet(), looks=3)
    assert not books.again(borrower).ending
    watcher.see(lender, unseen(), looks=4)
    assert books.again(borrower).ending, "nobody knows what its lender does"


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["quiet", "busy", "unseen", "held"]), st.integers(1, 40)), max_size=12))
def test_nobody_is_ended_who_was_not_idle_and_told(pattern: list[tuple[str, int]]) -> None:
    books = Books()
    books.connect(node("one", lends=True))
    watcher = Watcher(books)
    declare(books, IdlePolicy(IdleAction.RELEASE, after_ms=1_800_000, warn_ms=(900_000,)))
    lease = books.activate(books.allocate(request(500, GIB)))
    what = {"quiet": quiet(), "busy": busy(), "unseen": unseen(), "held": quiet(processes=0)}
    seen_quiet = 0
    for kind, looks in pattern:
        for _ in range(looks):
            watcher.see(lease, what[kind], looks=1, told=True)
            seen_quiet = seen_quiet + 1 if kind in ("quiet", "held") else 0 if kind == "busy" else seen_quiet
            if books.again(lease).ending:
                assert seen_quiet * LOOK_MS >= 1_800_000
                assert [fact.number for fact in books.facts if isinstance(fact, IdleWarned)]
                assert released_by(books, lease) == EndReason.IDLE
                return


def test_facts_are_few(books: Books, watcher: Watcher) -> None:
    lease = books.activate(books.allocate(request(500, GIB)))
    before = len(books.facts)
    watcher.see(lease, busy(), looks=8 * HOUR)
    assert len(books.facts) == before + 1, "samples are no facts"


def test_seen_of_leases_that_are_gone_is_nothing(books: Books) -> None:
    assert books.do(c.LookAtUse((Seen("l-gone", (Span("l-gone.1.0", 1, 1, 0, 0, 0, 0),)),))).facts == ()
    assert not any(isinstance(fact, ShareLent | ShareRecalled) for fact in books.facts)

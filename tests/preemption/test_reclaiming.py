"""A guarantee is reclaimed from whoever borrowed it, and only as far as it goes."""

from __future__ import annotations

from aliquot.coordinator.agents.desired import nodes_to_tell
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import PreemptionStarted
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED, Amount, QueueSpec, Quota
from tests.core.harness import GIB, Books, request
from tests.preemption.asking import ask, leave, run, state_of
from tests.tenancy.declaring import declare, queue, tenant


def test_an_owner_that_comes_back_gets_its_guarantee_within_a_minute(books: Books) -> None:
    declare(books, tenant("owner", 3))
    borrowed = [run(books, tenant="guest", priority=900, min_run_ms=10**7, grace_ms=10**7) for _ in range(4)]
    asked_ms = books.now_ms
    wanted = ask(books, count=3, tenant="owner")
    assert wanted.state is LeaseState.QUEUED
    books.advance(books.config.reclaim_min_run_ms)
    victims = [lease for lease in borrowed if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 3
    assert books.again(victims[0]).slices[0].deadline_ms - asked_ms < 60_000
    for lease in victims:
        leave(books, lease)
    assert state_of(books, wanted) is LeaseState.GRANTED
    started = [fact for fact in books.facts if isinstance(fact, PreemptionStarted)]
    assert [fact.reclaim for fact in started] == [True]


def test_beyond_its_guarantee_an_owner_reclaims_nothing(books: Books) -> None:
    declare(books, tenant("owner", 2))
    run(books, count=2, tenant="guest")
    run(books, count=2, tenant="owner")
    books.advance(60_000)
    assert ask(books, tenant="owner").state is LeaseState.QUEUED
    assert not any(isinstance(fact, PreemptionStarted) for fact in books.facts)


def test_what_a_guarantee_covers_is_out_of_reach_even_of_high_priority(books: Books) -> None:
    declare(books, tenant("owner", 2), tenant("other", 2))
    kept = run(books, count=2, tenant="owner", preemptible=True)
    lent = run(books, count=2, tenant="owner", preemptible=True)
    books.advance(60_000)
    assert ask(books, count=2, tenant="other", priority=900).state is LeaseState.QUEUED
    assert state_of(books, lent) is LeaseState.PREEMPTING
    leave(books, lent)
    assert ask(books, tenant="vip", priority=1000).state is LeaseState.QUEUED
    assert state_of(books, kept) is LeaseState.ACTIVE


def test_borrowers_below_a_limit_end_for_whoever_is_owed_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 2), queue("shared", 0, 3))
    borrowed = [run(books, tenant="guest", queue="shared", grace_ms=10**7) for _ in range(3)]
    books.advance(books.config.reclaim_min_run_ms)
    wanted = [books.allocate(request(1000, tenant="owner", queue="shared")) for _ in range(3)]
    books.settle()
    victims = [lease for lease in borrowed if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 2, "the third is not covered, and one device was idle all the time"
    assert books.again(victims[0]).slices[0].deadline_ms <= books.now_ms + books.config.reclaim_grace_ms
    for lease in victims:
        leave(books, lease)
    assert [state_of(books, lease) for lease in wanted] == [LeaseState.GRANTED] * 2 + [LeaseState.QUEUED]


def test_room_below_a_limit_is_made_for_the_first_of_equals_where_there_is_none_for_all(books: Books) -> None:
    declare(books, tenant("owner", 2), queue("shared", 0, 3))
    endable = run(books, tenant="guest", queue="shared")
    books.advance(books.config.reclaim_min_run_ms)
    young = [run(books, tenant="guest", queue="shared", min_run_ms=10**7) for _ in range(2)]
    for _ in range(2):
        books.allocate(request(1000, tenant="owner", queue="shared"))
    books.settle()
    assert state_of(books, endable) is LeaseState.PREEMPTING
    assert [state_of(books, lease) for lease in young] == [LeaseState.ACTIVE] * 2, "they have not run their time yet"


def test_equal_requests_do_not_wait_for_one_another_s_victims(books: Books) -> None:
    declare(books, tenant("owner", 3))
    for _ in range(4):
        run(books, tenant="guest")
    books.advance(books.config.reclaim_min_run_ms)
    wanted = [books.allocate(request(1000, tenant="owner")) for _ in range(4)]
    books.settle()
    assert [lease.lease_id in books.state.holds for lease in wanted] == [True] * 3 + [False]


def test_a_long_notice_is_cut_short_for_whoever_is_owed_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 4))
    borrowed = run(books, count=4, tenant="guest", grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    books.do(c.Release(borrowed.lease_id))
    before = books.again(borrowed)
    assert before.slices[0].deadline_ms == books.now_ms + 10**7
    ask(books, count=4, tenant="owner")
    assert {piece.deadline_ms for piece in books.again(borrowed).slices} == {books.now_ms + 30_000}
    assert state_of(books, borrowed) is LeaseState.RELEASING
    assert set(nodes_to_tell(before, books.again(borrowed))) == {"n-one"}, "its agent hears of it"
    assert books.restored().leases == books.state.leases


def test_a_victim_gains_no_time_by_being_released(books: Books) -> None:
    declare(books, tenant("owner", 4))
    borrowed = run(books, count=4, tenant="guest", grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    ask(books, count=4, tenant="owner")
    deadline_ms = books.again(borrowed).slices[0].deadline_ms
    books.do(c.Release(borrowed.lease_id))
    assert {piece.deadline_ms for piece in books.again(borrowed).slices} == {deadline_ms}


def test_what_is_kept_for_a_borrower_gives_way_to_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 4))
    low = run(books, count=4, tenant="guest", preemptible=True, grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    high = ask(books, count=4, tenant="guest", priority=10)
    assert books.state.holds[high.lease_id].start_ms == books.now_ms + 10**7
    wanted = ask(books, count=4, tenant="owner")
    assert list(books.state.holds) == [wanted.lease_id]
    assert books.again(low).slices[0].deadline_ms == books.now_ms + 30_000
    leave(books, low)
    assert state_of(books, wanted) is LeaseState.GRANTED
    assert state_of(books, high) is LeaseState.QUEUED


def test_memory_given_back_for_one_guarantee_is_not_counted_for_the_next(books: Books) -> None:
    declare(
        books,
        tenant("owner", 3),
        QueueSpec("shared", quota=Quota(limit=Amount(UNLIMITED, 120 * GIB))),
    )
    borrowed = [run(books, tenant="guest", queue="shared") for _ in range(3)]
    books.advance(books.config.reclaim_min_run_ms)
    for share, memory in ((300, 10 * GIB), (600, 30 * GIB + 1)):
        books.allocate(request(share, memory, tenant="owner", queue="shared"))
    books.settle()
    ending = [lease for lease in borrowed if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(ending) == 2, "of 40 GiB, the first request takes 10: a byte too little is left for the second"

"""Who comes first: priority with ageing, fair shares that fade, guarantees before loans, queues in a tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.accounts import FRACTION_BITS, faded, remaining
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec
from aliquot.coordinator.core.queueing.failed import KINDS_MAX, FailedDemands
from aliquot.coordinator.core.values.types import Demand, Placement
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, queue, root, tenant

HOUR_MS = 3_600_000


def pool(policy: QueuePolicy, devices: int = 4, **more: object) -> Books:
    """A pool with one queue of this policy."""
    books = Books()
    books.connect(node("one", devices))
    declare(books, root(policy), QueueSpec("default", policy=policy, reserve_after_ms=0, **more))  # type: ignore[arg-type]
    books.settle()
    return books


def ask(books: Books, **more: object) -> Lease:
    lease = books.allocate(request(1000, **more))  # type: ignore[arg-type]
    books.settle()
    lease = books.again(lease)
    return books.activate(lease) if lease.slices else lease


def free_one(books: Books, lease: Lease) -> None:
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.settle()


def served(books: Books, waiting: list[Lease]) -> list[int]:
    """Which of these are granted by now."""
    return [number for number, lease in enumerate(waiting) if books.again(lease).state is not LeaseState.QUEUED]


def test_fifo_serves_by_arrival_whatever_the_priority() -> None:
    books = pool(QueuePolicy.FIFO, preempts=False)
    running = [ask(books) for _ in range(4)]
    waiting = [ask(books, priority=priority) for priority in (0, 9, 5)]
    for number, lease in enumerate(running[:3]):
        free_one(books, lease)
        assert served(books, waiting) == list(range(number + 1))


def test_priority_serves_the_highest_first_until_the_others_have_waited_long_enough() -> None:
    books = pool(QueuePolicy.PRIORITY, ageing_ms=60_000)
    running = [ask(books) for _ in range(4)]
    old = ask(books, priority=0)
    books.advance(9 * 60_000)
    high = ask(books, priority=10)
    books.advance(2 * 60_000)
    free_one(books, running[0])
    assert served(books, [old, high]) == [1]
    later = ask(books, priority=10)
    free_one(books, running[1])
    assert served(books, [old, later]) == [0], "nobody waits for ever"


def test_without_ageing_priority_never_grows() -> None:
    books = pool(QueuePolicy.PRIORITY, ageing_ms=0)
    running = [ask(books) for _ in range(4)]
    old = ask(books, priority=0)
    books.advance(1000 * HOUR_MS)
    high = ask(books, priority=1)
    free_one(books, running[0])
    assert served(books, [old, high]) == [1]


def test_fair_share_serves_who_holds_least_by_weight() -> None:
    books = pool(QueuePolicy.FAIR_SHARE, 8)
    declare(books, tenant("heavy", weight=3), tenant("light", weight=1))
    running = [ask(books, tenant="heavy") for _ in range(4)] + [ask(books, tenant="light") for _ in range(4)]
    heavy, light = ask(books, tenant="heavy"), ask(books, tenant="light")
    free_one(books, running[4])
    assert served(books, [heavy, light]) == [0], "4 of weight 3 is less than 3 of weight 1"
    for lease in running[5:7]:
        free_one(books, lease)
    assert served(books, [heavy, light]) == [0, 1]


def test_a_tenant_that_waits_no_longer_takes_nobody_of_its_queue_along() -> None:
    books = pool(QueuePolicy.FAIR_SHARE)
    running = [ask(books) for _ in range(4)]
    waiting = [ask(books, tenant=name) for name in ("b", "c", "d")]
    books.do(c.Release(waiting[0].lease_id))
    for lease in running[:2]:
        free_one(books, lease)
    assert served(books, waiting[1:]) == [0, 1]


def test_yesterday_s_heavy_user_waits_and_is_forgiven_with_time() -> None:
    books = pool(QueuePolicy.FAIR_SHARE)
    declare(books, root(QueuePolicy.FAIR_SHARE, half_life_ms=HOUR_MS))
    yesterday = [ask(books, tenant="greedy") for _ in range(4)]
    books.advance(5 * HOUR_MS)
    for lease in yesterday:
        free_one(books, lease)
    blockers = [ask(books, tenant=f"t{n}") for n in range(4)]
    greedy, modest = ask(books, tenant="greedy"), ask(books, tenant="modest")
    free_one(books, blockers[0])
    assert served(books, [greedy, modest]) == [1]
    assert books.restored().tenancy.averages(books.now_ms) == books.state.tenancy.averages(books.now_ms)


def test_capacity_serves_who_is_furthest_below_their_guarantee() -> None:
    books = pool(QueuePolicy.CAPACITY, 8)
    declare(books, tenant("big", 4), tenant("small", 2))
    running = [ask(books, tenant="big") for _ in range(3)] + [
        ask(books, tenant="guest", min_run_ms=HOUR_MS) for _ in range(5)
    ]
    big, small = ask(books, tenant="big"), ask(books, tenant="small")
    victims = [lease for lease in running if books.again(lease).state is LeaseState.PREEMPTING]
    assert not victims, "guests have their minimum"
    free_one(books, running[-1])
    assert served(books, [big, small]) == [1]


def test_whom_a_guarantee_covers_comes_before_whoever_borrows() -> None:
    books = pool(QueuePolicy.PRIORITY)
    declare(books, tenant("owner", 1))
    running = [ask(books, tenant="guest", min_run_ms=HOUR_MS) for _ in range(4)]
    guest, owner = ask(books, tenant="guest", priority=100), ask(books, tenant="owner", priority=-100)
    free_one(books, running[0])
    assert served(books, [guest, owner]) == [1]


@pytest.mark.no_cover  # would more than double its time
def test_queues_share_by_weight_level_by_level() -> None:
    books = Books()
    books.connect(node("one", 8))
    declare(
        books,
        root(QueuePolicy.FAIR_SHARE),
        queue("research", weight=3, policy=QueuePolicy.FAIR_SHARE),
        queue("vision", parent="research", policy=QueuePolicy.FIFO),
        queue("speech", parent="research", policy=QueuePolicy.FIFO),
        queue("product", weight=1, policy=QueuePolicy.FIFO),
    )
    for _ in range(40):
        for name in ("vision", "speech", "product"):
            books.allocate(request(1000, tenant=name, queue=name))
    books.do(c.NodeSilent("n-one", 1, lost=False))
    books.do(c.NodeHeard("n-one", 1))
    for _ in range(40):
        books.settle()
        books.advance(HOUR_MS)
        for lease in list(books.state.leases.values()):
            if lease.slices and not lease.ended and (books.now_ms - lease.granted_ms) > 3 * HOUR_MS:
                free_one(books, lease)
    counts = dict.fromkeys(("vision", "speech", "product"), 0)
    for lease in books.state.leases.values():
        counts[lease.request.tenant] += lease.granted_ms > 0
    assert abs(counts["vision"] - counts["speech"]) <= 4
    assert counts["product"] < counts["vision"] + counts["speech"]


def test_equal_requests_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    books = pool(QueuePolicy.FAIR_SHARE)
    for _ in range(4):
        ask(books, tenant="a")
    for number in range(60):
        books.allocate(request(1000, tenant=f"t{number % 6}"))
    books.settle()
    engine = books.decider.engine
    tried = []
    place = engine.place

    def counted(demand: Demand) -> Placement | None:
        tried.append(demand)
        return place(demand)

    monkeypatch.setattr(engine, "place", counted)
    books.state.free_capacity()
    while books.decider.wants_admission():
        books.decider.decide(c.Admit(), books.now_ms)
    assert len(tried) == 1


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 1000), st.integers(0, 40), st.integers(1, 2))


@given(failed=st.lists(SIZES, min_size=1, max_size=40), asked=SIZES)
def test_only_what_is_as_large_in_every_respect_is_known_to_fail(
    failed: list[tuple[int, int, int, int]], asked: tuple[int, int, int, int]
) -> None:
    known = FailedDemands()

    def demand(size: tuple[int, int, int, int]) -> Demand:
        return Demand(count=size[0], share_milli=size[1], memory_bytes=size[2], gang_size=size[3])

    for size in failed:
        known.add(demand(size))
    covers = [
        all(a <= b for a, b in zip(size, asked, strict=True)) and bool(size[2]) == bool(asked[2]) for size in failed
    ]
    if demand(asked) in known:
        assert any(covers)
    if len(failed) <= 8:
        assert (demand(asked) in known) == any(covers)


def test_so_many_kinds_are_known_to_fail_and_no_more() -> None:
    known = FailedDemands()
    kinds = [Demand(models=((f"m{number}",),)) for number in range(KINDS_MAX + 1)]
    for demand in kinds:
        known.add(demand)
    assert [demand in known for demand in kinds] == [True] * KINDS_MAX + [False]


@given(
    old=st.integers(0, 10**9),
    held=st.integers(0, 10**9),
    parts=st.lists(st.integers(1, 10**9), min_size=1, max_size=20),
    half_life_ms=st.integers(1_000, 10**9),
)
def test_an_average_is_the_same_however_often_it_is_brought_up(
    old: int, held: int, parts: list[int], half_life_ms: int
) -> None:
    once = faded(old << FRACTION_BITS, held, sum(parts), half_life_ms)
    often = old << FRACTION_BITS
    for part in parts:
        often = faded(often, held, part, half_life_ms)
    assert abs(once - often) <= (abs(old - held) << FRACTION_BITS) // 50_000 + 2 * len(parts)
    low, high = sorted((old << FRACTION_BITS, held << FRACTION_BITS))
    assert low <= once <= high


def test_half_is_left_after_a_half_life() -> None:
    assert remaining(HOUR_MS, HOUR_MS) == 1 << 63
    assert remaining(0, HOUR_MS) == 1 << 64
    assert remaining(100 * HOUR_MS, HOUR_MS) == 0
    assert abs(remaining(HOUR_MS // 2, HOUR_MS) - 13_043_817_825_332_782_212) < 1 << 44


def test_what_is_granted_as_it_comes_has_nobody_make_room_or_tried_again() -> None:
    books = pool(QueuePolicy.PRIORITY)
    declare(books, tenant("owner", 2))
    ask(books, tenant="guest", min_run_ms=HOUR_MS)
    large = books.allocate(request(1000, count=4, tenant="guest"))
    books.settle()
    came = books.allocate(request(1000, tenant="owner", priority=100))
    assert (came.state, books.again(large).state) == (LeaseState.GRANTED, LeaseState.QUEUED)
    assert not books.decider.wants_admission()
    assert books.state.lines.place_of(came.lease_id) is None

"""A request that waits can say why, who is ahead, who would have to end, and when it is expected to start."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import PoolSpec, QueuePolicy
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import RequestSpec
from aliquot.coordinator.reading.forecasts import Start
from aliquot.coordinator.wire.forecasts import write_start
from aliquot.coordinator.wire.hiding import of_tenant
from aliquot.coordinator.wire.leases import explanation_message
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, queue, root, tenant


def explain(books: Books, subject: RequestSpec | str) -> Explained:
    return books.ask(ExplainLease(subject) if isinstance(subject, str) else Explain(subject))


def full_pool(**more: object) -> Books:
    books = Books()
    books.connect(node("one"))
    books.settle()
    for _ in range(4):
        books.activate(books.allocate(request(1000, **more)))  # type: ignore[arg-type]
    return books


def test_the_start_follows_from_the_time_limits_of_what_runs() -> None:
    books = full_pool(time_limit_ms=3_600_000)
    waiting = books.allocate(request(1000))
    books.advance(600_000)
    found = explain(books, waiting.lease_id)
    assert found.expected_start_ms == books.now_ms + 3_000_000
    assert not found.waits_for
    assert found.queue_position == 1


def test_no_start_is_told_where_what_no_time_limit_ends_must_go_first() -> None:
    books = full_pool(tenant="bio")
    waiting = books.allocate(request(1000))
    books.advance(600_000)
    found = explain(books, waiting.lease_id)
    books.advance(600_000)
    assert found == explain(books, waiting.lease_id), "it has not come nearer"
    assert found.expected_start_ms == 0
    (blocker,) = found.waits_for
    of_all, own = (explanation_message(found, books.read(), sees) for sees in (None, of_tenant("a")))
    assert of_all.start_unknown == f"not known, waits until tenant bio gives back {blocker} (no time limit)"
    assert own.start_unknown == "not known, waits until others give back what they hold (no time limit)"
    assert not of_all.HasField("expected_start_ms")


def test_the_start_is_told_where_time_limits_make_room_however_long_that_takes() -> None:
    books = full_pool(time_limit_ms=3_600_000)
    books.do(c.Release(next(iter(books.state.leases))))
    books.report(next(iter(books.state.leases.values())), c.ReportStatus.GONE)
    books.activate(books.allocate(request(1000, tenant="bio")))
    waiting = books.allocate(request(1000))
    books.advance(60_000)
    found = explain(books, waiting.lease_id)
    assert found.expected_start_ms == books.now_ms - 60_000 + 3_600_000, "a guess would be a minute from now"
    assert not found.waits_for


def test_behind_a_limit_of_its_own_no_start_is_told() -> None:
    books = Books()
    books.connect(node("one"))
    declare(books, tenant("a", limit=1))
    books.activate(books.allocate(request(1000)))
    waiting = books.allocate(request(1000))
    books.settle()
    message = explanation_message(explain(books, waiting.lease_id), books.read(), None)
    write_start(message, Start(books.now_ms, books.now_ms + 60_000, books.now_ms, books.now_ms + 120_000))
    assert not message.HasField("expected_start_ms")
    assert message.missing[0].reason == "QUOTA"


def test_the_start_counts_what_is_kept_for_the_request_already() -> None:
    hour_ms = 3_600_000
    books = Books()
    books.connect(node("one"))
    books.settle()
    first, *_ = [books.activate(books.allocate(request(1000, time_limit_ms=hours * hour_ms))) for hours in range(1, 5)]
    began_ms = books.now_ms
    waiting = books.allocate(request(1000, count=2))
    books.advance(600_000)
    assert waiting.lease_id in books.state.holds
    books.do(c.Release(first.lease_id))
    books.report(first, c.ReportStatus.GONE)
    books.settle()
    assert explain(books, waiting.lease_id).expected_start_ms == began_ms + 2 * hour_ms


def test_it_names_who_would_be_preempted_without_preempting() -> None:
    books = full_pool(preemptible=True)
    found = explain(books, request(1000, count=2, priority=5))
    assert len(found.would_preempt) == 2
    assert "2 leases would have to end for it" in found.notes
    assert all(lease_id in books.state.leases for lease_id in found.would_preempt)
    assert not books.state.holds


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(1000, count=2, tenant="a"), "QUOTA"),
        (request(100, tenant="nobody"), "TENANT_NOT_FOUND"),
        (request(100, tenant="a", queue="nowhere"), "QUEUE_NOT_FOUND"),
        (request(100, tenant="a", queue="closed"), "INVALID_FIELD"),
        (request(100, tenant="b", queue="closed", pool="other"), "INVALID_FIELD"),
    ],
)
def test_what_allocate_refuses_is_said_to_be_impossible(asked: RequestSpec, reason: str) -> None:
    books = Books(CoreConfig(strict_tenants=True))
    books.connect(node("one"))
    declare(books, PoolSpec("default"), tenant("a", 0, 1), tenant("b"), queue("closed", tenants=("b",), pool="default"))
    with pytest.raises(DomainError) as refused:
        books.do(c.Allocate("l-refused", asked))
    found = explain(books, asked)
    assert found.impossible
    assert not found.fits_now
    assert found.summary == str(refused.value)
    assert found.missing[0].reason == reason


def test_a_request_is_explained_for_the_pool_that_serves_its_queue() -> None:
    books = Books()
    books.connect(node("one"))
    declare(books, PoolSpec("other"), queue("elsewhere", pool="other"))
    assert explain(books, request(1000)).fits_now
    assert not explain(books, request(1000, queue="elsewhere")).fits_now


def test_a_limit_is_named_as_the_reason() -> None:
    books = Books()
    books.connect(node("one"))
    declare(books, tenant("a", 0, 1))
    books.settle()
    books.allocate(request(1000, tenant="a"))
    waiting = books.allocate(request(1000, tenant="a"))
    found = explain(books, waiting.lease_id)
    assert found.missing[0].reason == "QUOTA"
    assert "may hold 1" in found.summary
    assert not found.impossible


def test_it_says_who_is_ahead_and_what_a_guarantee_gives() -> None:
    books = full_pool(min_run_ms=10**9)
    declare(books, tenant("owner", 2))
    first = books.allocate(request(1000))
    second = books.allocate(request(1000))
    found = explain(books, second.lease_id)
    assert found.ahead == (first.lease_id,)
    assert found.queue_position == 2
    assert any("guarantee covers" in note for note in explain(books, request(1000, tenant="owner")).notes)


def test_it_says_why_others_are_ahead_and_speaks_of_one_and_of_many() -> None:
    books = full_pool(min_run_ms=10**9)
    books.allocate(request(1000, priority=5))
    books.allocate(request(1000))
    last = books.allocate(request(1000))
    found = explain(books, last.lease_id)
    assert "ahead of it: 1 of higher priority, 1 that came earlier" in found.notes
    assert found.summary.startswith("1 device (whole) does not fit now")
    assert explain(books, request(1000, count=2)).summary.startswith("2 devices (whole) do not fit now")


@pytest.mark.parametrize(("share", "memory_gib"), [(750, 0), (100, 30)])
def test_it_says_what_part_of_the_pool_a_tenant_holds(share: int, memory_gib: int) -> None:
    hour_ms = 3_600_000
    books = Books()
    books.connect(node("one"))
    declare(books, root(QueuePolicy.FAIR_SHARE, half_life_ms=hour_ms), queue("default", policy=QueuePolicy.FAIR_SHARE))
    books.activate(books.allocate(request(share, memory_gib * GIB, count=4)))
    books.advance(100 * hour_ms)
    waiting = books.allocate(request(1000, count=2))
    notes = explain(books, waiting.lease_id).notes
    assert any("holds, and lately held, 150.0 % of the pool" in note for note in notes), "the sum of both"


def test_others_who_hold_as_much_do_not_hold_less() -> None:
    books = Books()
    books.connect(node("one"))
    declare(books, root(QueuePolicy.FAIR_SHARE), queue("default", policy=QueuePolicy.FAIR_SHARE))
    for name, share in (("little", 500), ("as-much", 1000), ("mine", 1000), ("much", 1000), ("much", 250)):
        books.activate(books.allocate(request(share, tenant=name)))
    for name in ("little", "as-much", "much"):
        books.allocate(request(1000, tenant=name, count=4))
    waiting = books.allocate(request(1000, tenant="mine", count=4))
    notes = explain(books, waiting.lease_id).notes
    assert any("1 of the 3 other tenants that wait there hold less" in note for note in notes), notes


def test_an_owner_is_told_when_borrowers_must_go_and_that_they_are_going() -> None:
    books = full_pool(tenant="guest", grace_ms=10**7, min_run_ms=10**7)
    declare(books, tenant("owner", 2))
    waiting = books.allocate(request(1000, tenant="owner"))
    books.settle()
    found = explain(books, waiting.lease_id)
    assert found.expected_start_ms == books.now_ms + 50_000
    assert any("once they have run 20 s" in note for note in found.notes)
    books.advance(20_000)
    found = explain(books, waiting.lease_id)
    assert len(found.would_preempt) == 1
    assert found.expected_start_ms == books.now_ms + 30_000
    assert "1 lease is ending for it, within 30 s" in found.notes


def test_an_owner_is_told_where_slivers_that_others_are_owed_stand_in_the_way() -> None:
    books = Books()
    books.connect(node("one"))
    books.settle()
    declare(books, tenant("slivers", 1), tenant("owner", 3))
    for _ in range(4):
        books.activate(books.allocate(request(250, 30 << 30, tenant="slivers")))
    waiting = books.allocate(request(1000, tenant="owner"))
    books.settle()
    found = explain(books, waiting.lease_id)
    assert any("even without everybody who borrows" in note for note in found.notes)

"""Nobody ever holds more than their limit: refused at once where waiting can't help, else they wait."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.limits import MILLIONTHS, covered, scale_of
from aliquot.coordinator.core.books.tenancy.ranking import Part, Sums
from aliquot.coordinator.core.books.tenancy.specs import (
    NO_LIMIT,
    Amount,
    Budget,
    ModelQuota,
    Period,
    PoolSpec,
    QueueSpec,
    Quota,
    TenantSpec,
)
from aliquot.coordinator.core.values.errors import InvalidField, QuotaExceeded
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, queue, tenant

HOUR_MS = 3_600_000


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one", 8))
    return books


def ask(books: Books, *args: int, **more: object) -> Lease:
    """Ask, and let what is free be offered to all that wait."""
    lease = books.allocate(request(*args, **more))  # type: ignore[arg-type]
    books.settle()
    return books.again(lease)


def free(books: Books, lease_id: str) -> None:
    lease = books.state.leases[lease_id]
    books.do(c.Release(lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.settle()


def test_above_the_limit_for_ever_is_refused_at_once(books: Books) -> None:
    declare(books, tenant("a", 0, 2))
    with pytest.raises(QuotaExceeded, match="may hold 2; 3 more") as refused:
        ask(books, 1000, count=3, tenant="a")
    assert refused.value.subject == "tenant a"


def test_above_the_limit_now_waits_until_enough_is_given_back(books: Books) -> None:
    declare(books, tenant("a", 0, 2))
    first = ask(books, 1000, count=2, tenant="a")
    second = ask(books, 500, tenant="a")
    assert second.state is LeaseState.QUEUED
    other = ask(books, 500, tenant="b")
    assert other.state is LeaseState.GRANTED, "another tenant's limit is no reason to wait"
    with pytest.raises(QuotaExceeded):
        books.allocate(request(500, tenant="a"), no_queue=True)
    free(books, first.lease_id)
    assert books.again(second).state is LeaseState.GRANTED


def test_the_limit_of_a_queue_above_counts_too(books: Books) -> None:
    declare(books, queue("research", 0, 3), queue("vision", parent="research"), queue("speech", parent="research"))
    ask(books, 1000, count=2, tenant="a", queue="vision")
    assert ask(books, 1000, tenant="b", queue="speech").state is LeaseState.GRANTED
    assert ask(books, 1000, tenant="b", queue="speech").state is LeaseState.QUEUED
    assert ask(books, 1000, tenant="b").state is LeaseState.GRANTED


def test_memory_is_limited_as_well(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(limit=Amount(-1, 50 * GIB))))
    assert ask(books, 100, 30 * GIB, tenant="a").state is LeaseState.GRANTED
    assert ask(books, 100, 30 * GIB, tenant="a").state is LeaseState.QUEUED
    assert ask(books, 100, 20 * GIB, tenant="a").state is LeaseState.GRANTED


def test_a_share_without_memory_is_held_to_the_memory_that_it_really_gets(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(limit=Amount(-1, 30 * GIB))))
    assert ask(books, 500, tenant="a").state is LeaseState.GRANTED
    assert ask(books, 500, tenant="a").state is LeaseState.QUEUED


def test_a_limit_on_one_model_sends_the_request_to_another(books: Books) -> None:
    books.connect(node("two", 8, model="H100-80", memory_gib=80))
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("H100-80", limit=Amount(1000, -1)),))))
    models = [ask(books, 1000, tenant="a", models=(("H100-80",), ("A100-40",))).slices[0].model for _ in range(3)]
    assert models == ["H100-80", "A100-40", "A100-40"]
    assert ask(books, 1000, tenant="a", models=(("H100-80",),)).state is LeaseState.QUEUED
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("H100-80", limit=NO_LIMIT),))))
    books.settle()
    assert not len(books.state.lines)


def test_a_pool_may_keep_some_of_itself_free(books: Books) -> None:
    declare(books, PoolSpec("default", limit=Amount(6000, -1)))
    assert ask(books, 1000, count=6).state is LeaseState.GRANTED
    assert ask(books, 1000).state is LeaseState.QUEUED


def test_a_queue_is_served_by_its_pool_and_open_to_its_tenants(books: Books) -> None:
    books.connect(node("lab", 8, pool="lab"))
    declare(books, queue("q", pool="lab", tenants=("a",)))
    lease = ask(books, 1000, tenant="a", queue="q")
    assert lease.slices[0].plan.node_id == "n-lab"
    with pytest.raises(InvalidField, match="may not use"):
        ask(books, 1000, tenant="b", queue="q")
    with pytest.raises(InvalidField, match="served by pool lab"):
        ask(books, 1000, tenant="a", queue="q", pool="default")


def test_a_budget_stops_new_grants_until_the_next_period_and_warns_before(books: Books) -> None:
    books.now_ms = 10 * 24 * HOUR_MS
    declare(books, tenant("a", budget=Budget(Period.DAY, share_milli_ms=10 * 1000 * HOUR_MS)))
    running = books.activate(ask(books, 1000, count=2, tenant="a"))
    books.advance(4 * HOUR_MS)
    assert books.state.ledger.levels["a"][1] == 800
    assert ask(books, 1000, tenant="a").state is LeaseState.GRANTED
    books.advance(HOUR_MS)
    assert books.state.ledger.levels["a"][1] == 1000
    waiting = ask(books, 1000, tenant="a")
    assert waiting.state is LeaseState.QUEUED
    with pytest.raises(QuotaExceeded, match="budget"):
        books.allocate(request(1000, tenant="a"), no_queue=True)
    assert books.again(running).state is LeaseState.ACTIVE, "what runs goes on"
    books.advance(18 * HOUR_MS)
    assert books.again(waiting).state is LeaseState.QUEUED
    books.advance(HOUR_MS)
    assert books.again(waiting).state is LeaseState.GRANTED


def test_what_was_used_of_a_budget_is_the_same_after_a_restart(books: Books) -> None:
    declare(books, tenant("a", budget=Budget(Period.DAY, share_milli_ms=1000 * HOUR_MS, money_micro=10)))
    first = books.activate(ask(books, 1000, tenant="a"))
    books.activate(ask(books, 250, tenant="a"))
    books.advance(HOUR_MS // 3)
    free(books, first.lease_id)
    books.advance(HOUR_MS // 7)
    later = books.now_ms + 12_345
    assert books.restored().meters["a"].used(later) == books.state.meters["a"].used(later)
    assert books.replayed().meters["a"].used(later) == books.state.meters["a"].used(later)


H100 = (("H100-80",),)


def test_memory_of_one_model_is_limited_by_itself(books: Books) -> None:
    books.connect(node("two", 8, model="H100-80", memory_gib=80))
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("H100-80", limit=Amount(-1, 50 * GIB)),))))
    with pytest.raises(QuotaExceeded, match="holds 0 MiB of H100-80 and may hold 51200 MiB; 51201 MiB more"):
        ask(books, 100, (50 << 30) + (1 << 20), tenant="a", models=H100)
    assert ask(books, 100, 50 * GIB, tenant="a", models=H100).state is LeaseState.GRANTED
    assert ask(books, 100, 1 * GIB, tenant="a", models=H100).state is LeaseState.QUEUED
    assert ask(books, 100, 30 * GIB, tenant="a", models=(("A100-40",),)).state is LeaseState.GRANTED


def test_devices_of_one_model_are_limited_to_the_last_part(books: Books) -> None:
    books.connect(node("two", 8, model="H100-80", memory_gib=80))
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("H100-80", limit=Amount(1500, -1)),))))
    with pytest.raises(QuotaExceeded, match=r"holds 0 devices of H100-80 and may hold 1\.5; 2 more") as refused:
        ask(books, 1000, count=2, tenant="a", models=H100)
    assert refused.value.subject == "tenant a"
    assert ask(books, 750, count=2, tenant="a", models=H100).state is LeaseState.GRANTED
    assert ask(books, 10, tenant="a", models=H100).state is LeaseState.QUEUED
    assert ask(books, 1000, count=4, tenant="a", models=(("A100-40",),)).state is LeaseState.GRANTED


def test_a_limit_that_is_reached_exactly_is_kept(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(limit=Amount(2000, 50 * GIB))))
    with pytest.raises(QuotaExceeded, match="holds 0 MiB and may hold 51200 MiB; 51201 MiB more"):
        ask(books, 100, (25 << 30) + (1 << 19), count=2, tenant="a")
    assert ask(books, 500, 25 * GIB, count=2, tenant="a").state is LeaseState.GRANTED
    later = ask(books, 500, 1 * GIB, tenant="a")
    assert later.state is LeaseState.QUEUED, "it may be had once something is given back"


def test_what_a_guarantee_covers_to_the_last_byte() -> None:
    def within(quota: Quota, *parts: Part, scale: int = MILLIONTHS) -> bool:
        return covered(quota, (), parts, scale)

    share, memory, both = (Quota(guaranteed=Amount(*amount)) for amount in ((500, 0), (0, 100), (500, 100)))
    assert within(share, ("m", 500, 10**9))
    assert not within(share, ("m", 501, 0))
    assert within(memory, ("m", 10**6, 100))
    assert not within(memory, ("m", 1, 101))
    assert within(both, ("m", 250, 50), ("n", 250, 50))
    assert not within(both, ("m", 250, 50), ("n", 250, 51))
    assert not within(both, ("m", 250, 50), ("n", 250, 50), scale=MILLIONTHS - 1)
    of_model = Quota(models=(ModelQuota("m", guaranteed=Amount(500, 100)),))
    assert within(of_model, ("m", 250, 50), ("m", 250, 50))
    for more in (("m", 250, 51), ("m", 251, 50), ("n", 1, 1)):
        assert not within(of_model, ("m", 250, 50), more)
    for held, fits in ((50, True), (51, False)):
        sums = Sums(250, held, {"m": (250, held)})
        assert covered(of_model, (sums,), (("m", 250, 50),), MILLIONTHS) == fits


def test_every_promise_shrinks_by_what_is_shortest() -> None:
    promise = Amount(4000, 400)
    for usable, scale in (((4000, 400), 10**6), ((3000, 400), 750_000), ((4000, 100), 250_000), ((3000, 200), 500_000)):
        assert scale_of(promise, Amount(*usable)) == scale
    assert (scale_of(Amount(), Amount()), scale_of(Amount(1, 0), Amount())) == (MILLIONTHS, 0)


def test_the_limit_of_the_root_counts_for_the_deepest_queue(books: Books) -> None:
    names = [f"q{number}" for number in range(8)]
    below = zip(names, ["root", *names], strict=False)
    declare(
        books,
        QueueSpec("root", parent="", quota=Quota(limit=Amount(2000, -1))),
        *(QueueSpec(name, parent=parent) for name, parent in below),
    )
    with pytest.raises(QuotaExceeded) as refused:
        ask(books, 1000, count=3, queue=names[-1])
    assert refused.value.subject == "queue root"
    with pytest.raises(InvalidField, match="9 levels"):
        declare(books, QueueSpec("q8", parent=names[-1]))

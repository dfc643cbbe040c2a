"""What may be declared, and what is refused with the numbers and the books as they were."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import (
    Amount,
    Budget,
    DeclaredDevices,
    ModelQuota,
    Period,
    PoolSpec,
    QueueSpec,
    Quota,
    TenantSpec,
)
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import (
    Conflict,
    InvalidField,
    QueueInUse,
    QueueNotFound,
    TenantInUse,
    TenantNotFound,
)
from aliquot.coordinator.reading.books import TenancyView
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, queue, tenant


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one", 8))
    return books


def view(books: Books) -> TenancyView:
    return books.read().tenancy(books.now_ms)


def test_what_is_declared_is_there_after_replay_and_restart(books: Books) -> None:
    declare(books, tenant("a", 4, 8), queue("train", 2), PoolSpec("default"))
    assert state_hash(books.replayed()) == state_hash(books.restored()) == state_hash(books.state)
    assert books.restored().tenancy.tenants["a"].version == 1


def test_declaring_the_same_again_changes_nothing(books: Books) -> None:
    declare(books, tenant("a", 4))
    decision = books.do(c.Apply(tenants=((tenant("a", 4), 1),)))
    assert decision.facts == ()
    assert decision.outcome.unchanged == ("tenant a",)


def test_a_dry_run_checks_everything_and_changes_nothing(books: Books) -> None:
    decision = books.do(c.Apply(tenants=((tenant("a", 4), 0),), dry_run=True))
    assert decision.facts == ()
    assert decision.outcome.changed == (("tenant a", 1),)
    with pytest.raises(InvalidField):
        books.do(c.Apply(tenants=((tenant("a", 9), 0),), dry_run=True))


def test_of_two_administrators_the_second_is_told_to_read_again(books: Books) -> None:
    books.do(c.Apply(tenants=((tenant("a", 4), 0),)))
    books.do(c.Apply(tenants=((tenant("a", 5), 1),)))
    with pytest.raises(Conflict, match="version 2"):
        books.do(c.Apply(tenants=((tenant("a", 6), 1),)))
    with pytest.raises(Conflict):
        books.do(c.Apply(tenants=((tenant("a", 6), 0),)))
    assert books.state.tenancy.tenants["a"].spec == tenant("a", 5)


def test_more_than_there_is_can_not_be_guaranteed(books: Books) -> None:
    declare(books, tenant("a", 5))
    with pytest.raises(InvalidField, match=r"9 devices.* would be guaranteed.* have 8 devices"):
        declare(books, tenant("b", 4))
    with pytest.raises(InvalidField):
        declare(books, queue("q", 4))


def test_devices_that_are_declared_count_before_their_nodes_register() -> None:
    books = Books()
    with pytest.raises(InvalidField):
        declare(books, tenant("a", 4))
    declare(books, PoolSpec("default", (DeclaredDevices("A100-40", 8, 40 * GIB),)), tenant("a", 8))
    books.connect(node("one", 8))
    with pytest.raises(InvalidField):
        declare(books, tenant("b", 1))


def test_lost_capacity_reduces_every_guarantee_alike_and_says_so(books: Books) -> None:
    books.connect(node("two", 8))
    declare(books, tenant("a", 8), tenant("b", 8))
    assert view(books).alerts == ()
    books.do(c.NodeSilent("n-two", 1, lost=True))
    now = view(books)
    assert now.guarantee_scale_millionths == 500_000
    assert now.tenants[0].guaranteed_scaled == Amount(4000)
    assert any("GUARANTEES_REDUCED" in alert for alert in now.alerts)


def test_nodes_that_are_only_awaited_reduce_no_guarantee(books: Books) -> None:
    """Else a take-over would end leases that a guarantee covers, before the first agents are back."""
    books.connect(node("two", 8))
    declare(books, tenant("a", 16))
    books.do(c.NodeSilent("n-two", 1, lost=False))
    assert view(books).guarantee_scale_millionths == 1_000_000
    books.do(c.StartLeading(books.state.leader_epoch + 1))
    assert view(books).guarantee_scale_millionths == 1_000_000
    books.do(c.Cordon("n-two"))
    assert view(books).guarantee_scale_millionths == 500_000
    books.do(c.Cordon("n-two", cordoned=False))
    assert view(books).guarantee_scale_millionths == 1_000_000
    books.do(c.NodeSilent("n-two", 1, lost=True))
    assert view(books).guarantee_scale_millionths == 500_000


@pytest.mark.parametrize(
    "spec",
    [
        TenantSpec("a", Quota(guaranteed=Amount(-1))),
        TenantSpec("a", Quota(guaranteed=Amount(1 << 63))),
        TenantSpec("a", Quota(guaranteed=Amount(0, 1 << 63))),
        TenantSpec("a", Quota(limit=Amount(-2, -1))),
        TenantSpec("a", Quota(guaranteed=Amount(2000), limit=Amount(1000, -1))),
        TenantSpec("a", Quota(weight=0)),
        TenantSpec("a", Quota(weight=10**6)),
        TenantSpec("a", Quota(models=(ModelQuota("A100-40"), ModelQuota("A100-40")))),
        TenantSpec("a b"),
        TenantSpec(""),
        TenantSpec("a", disruptions_max=-1),
        TenantSpec("a", budget=Budget(Period.DAY, share_milli_ms=-1)),
        TenantSpec("a", budget=Budget(Period.DAY, money_micro=1 << 63)),
        QueueSpec("q", ageing_ms=-1),
        QueueSpec("q", half_life_ms=0),
        QueueSpec("q", parent="q"),
        QueueSpec("q", parent="nowhere"),
        QueueSpec("root", parent="q"),
        QueueSpec("root", parent="", quota=Quota(guaranteed=Amount(1))),
        PoolSpec("default", (DeclaredDevices("A100-40", -1, GIB),)),
        PoolSpec("default", (DeclaredDevices("", 1, GIB),)),
        PoolSpec("no/slash"),
    ],
)
def test_nonsense_is_refused_with_its_field(books: Books, spec: TenantSpec | QueueSpec | PoolSpec) -> None:
    with pytest.raises(InvalidField) as refused:
        declare(books, spec)
    assert refused.value.field
    assert not books.state.tenancy.tenants
    assert not books.state.tenancy.queues


def test_a_leap_year_is_the_longest_time(books: Books) -> None:
    year_ms = 366 * 86_400_000
    declare(books, QueueSpec("q", ageing_ms=year_ms))
    with pytest.raises(InvalidField, match="not within"):
        declare(books, QueueSpec("q", ageing_ms=year_ms + 1))
    assert books.state.tenancy.queue_spec("q").ageing_ms == year_ms


def test_a_cycle_of_queues_is_refused(books: Books) -> None:
    declare(books, queue("a"), queue("b", parent="a"), queue("c", parent="b"))
    with pytest.raises(InvalidField, match=r"cycle: .*a.*c.*b"):
        declare(books, queue("a", parent="c"))
    with pytest.raises(InvalidField, match="cycle"):
        declare(books, queue("x", parent="y"), queue("y", parent="x"))


def test_children_are_not_promised_more_than_their_parent(books: Books) -> None:
    declare(books, queue("a", 4), queue("b", 3, parent="a"))
    with pytest.raises(InvalidField, match="children"):
        declare(books, queue("c", 2, parent="a"))


def test_a_tenant_with_live_leases_can_not_be_removed(books: Books) -> None:
    declare(books, tenant("a", 4))
    lease = books.allocate(request(1000, tenant="a"))
    with pytest.raises(TenantInUse, match="1 leases that hold"):
        books.do(c.Withdraw(c.Declared.TENANT, "a"))
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.do(c.Withdraw(c.Declared.TENANT, "a", 1))
    with pytest.raises(TenantNotFound):
        books.do(c.Withdraw(c.Declared.TENANT, "a"))


def test_a_queue_in_use_can_not_be_removed(books: Books) -> None:
    declare(books, queue("a"), queue("b", parent="a"), tenant("t", default_queue="b"))
    for name in ("a", "b"):
        with pytest.raises(QueueInUse):
            books.do(c.Withdraw(c.Declared.QUEUE, name))
    with pytest.raises(QueueNotFound):
        books.do(c.Withdraw(c.Declared.QUEUE, "c"))


def test_a_limit_can_not_be_set_below_what_is_held(books: Books) -> None:
    books.allocate(request(1000, count=4, tenant="a"))
    with pytest.raises(InvalidField, match="holds 4 devices"):
        declare(books, tenant("a", 0, 3))
    declare(books, tenant("a", 0, 4))


def test_unknown_tenants_and_queues_are_welcome_unless_strict() -> None:
    books = Books(CoreConfig(strict_tenants=True))
    books.connect(node("one", 8))
    with pytest.raises(TenantNotFound):
        books.allocate(request(1000, tenant="a"))
    declare(books, tenant("a"))
    with pytest.raises(QueueNotFound):
        books.allocate(request(1000, tenant="a", queue="q"))
    books.allocate(request(1000, tenant="a"))


def test_a_clock_that_goes_back_leaves_the_books_in_order(books: Books) -> None:
    declare(books, tenant("a", 4))
    books.now_ms -= 500_000
    declare(books, tenant("a", 5))
    lease = books.allocate(request(1000, tenant="a"))
    assert lease.created_ms >= books.facts[-3].at_ms
    assert [fact.at_ms for fact in books.facts] == sorted(fact.at_ms for fact in books.facts)

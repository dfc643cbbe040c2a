"""How often a lease, and a tenant, may be disturbed by priority."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.known.config import CoreConfig
from tests.core.harness import Books, node
from tests.preemption.asking import all_leave, ask, leave, run, state_of
from tests.tenancy.declaring import declare, tenant


def test_the_same_lease_is_not_preempted_again_and_again() -> None:
    books = Books(CoreConfig(preemptions_max=2, preemption_period_ms=3_600_000))
    books.connect(node("one"))
    books.settle()
    low = run(books, count=4, preemptible=True)
    for _ in range(2):
        high = ask(books, count=4, priority=10)
        leave(books, low)
        assert state_of(books, high) is LeaseState.GRANTED
        books.do(c.Release(high.lease_id))
        leave(books, high)
    assert books.again(low).preemptions == 2
    assert state_of(books, low) is LeaseState.QUEUED, "it waits until it can stay"
    books.advance(3_600_000)
    assert state_of(books, low) is LeaseState.GRANTED


def test_who_was_preempted_too_often_may_start_all_the_same_where_a_guarantee_covers_it() -> None:
    books = Books(CoreConfig(preemptions_max=1, preemption_period_ms=3_600_000))
    books.connect(node("one"))
    books.settle()
    low = run(books, count=4, preemptible=True, tenant="a")
    high = ask(books, count=4, priority=10, tenant="b")
    leave(books, low)
    books.do(c.Release(high.lease_id))
    leave(books, high)
    assert state_of(books, low) is LeaseState.QUEUED
    declare(books, tenant("a", 4))
    books.settle()
    assert state_of(books, low) is LeaseState.GRANTED


def test_a_tenant_bounds_how_often_it_is_disturbed(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=1, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    ask(books, priority=10, tenant="b")
    ask(books, priority=10, tenant="b")
    victims = [lease for lease in leases if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 1
    leave(books, victims[0])
    books.advance(599_000)
    assert sum(books.again(lease).preemptions for lease in leases) == 1
    books.advance(2_000)
    assert sum(books.again(lease).preemptions for lease in leases) == 2


def test_each_disruption_of_a_budget_comes_back_in_its_own_time(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=2, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    for wait_ms, total in ((0, 1), (100_000, 2), (0, 2), (0, 2), (499_999, 2), (1, 3), (99_999, 3), (1, 4)):
        books.advance(wait_ms)
        if wait_ms in (0, 100_000):
            ask(books, priority=10, tenant="b")
        assert all_leave(books, leases) == total


def test_who_needs_more_than_is_left_of_a_budget_has_it_once_it_is_back(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=2, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    ask(books, priority=10, tenant="b")
    assert all_leave(books, leases) == 1
    ask(books, count=2, priority=10, tenant="b")
    for wait_ms, total in ((0, 1), (599_999, 1), (1, 3)):
        books.advance(wait_ms)
        assert all_leave(books, leases) == total, "never more than two within ten minutes"


def test_where_one_tenants_budget_is_too_small_others_give_way_elsewhere() -> None:
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 2))
    books.settle()
    declare(books, tenant("a", disruptions_max=1))
    old = [run(books, preemptible=True, tenant="c") for _ in range(2)]
    books.advance(60_000)
    cheap = [run(books, preemptible=True, tenant="a") for _ in range(2)]
    ask(books, count=2, priority=10, tenant="b")
    assert [state_of(books, lease) for lease in (*old, *cheap)] == [LeaseState.PREEMPTING] * 2 + [LeaseState.ACTIVE] * 2


@pytest.mark.parametrize("left", [1, 2])
def test_where_one_tenants_budget_is_too_small_others_give_way_on_the_same_device(left: int) -> None:
    """Two leases of one tenant would be the cheapest; as many of them end as its budget allows."""
    books = Books()
    books.connect(node("one", 1))
    books.settle()
    declare(books, tenant("a", disruptions_max=left))
    old = [run(books, 250, preemptible=True, tenant="c") for _ in range(2)]
    books.advance(60_000)
    cheap = [run(books, 250, preemptible=True, tenant="a") for _ in range(2)]
    books.advance(60_000)
    ask(books, 500, priority=10, tenant="b")
    ends = [sum(state_of(books, lease) is LeaseState.PREEMPTING for lease in some) for some in (old, cheap)]
    assert ends == [2 - left, left]


def test_other_nodes_are_preferred_to_dearer_leases_where_a_budget_is_too_small() -> None:
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 1))
    books.settle()
    declare(books, tenant("a", disruptions_max=1))
    dear = [run(books, 250, preemptible=True, tenant="c", node_ids=("n-one",)) for _ in range(2)]
    books.advance(60_000)
    others = [run(books, 500, preemptible=True, tenant="d", node_ids=("n-two",)) for _ in range(2)]
    books.advance(30_000)
    cheap = [run(books, 250, preemptible=True, tenant="a", node_ids=("n-one",)) for _ in range(2)]
    books.advance(30_000)
    ask(books, 1000, memory_bytes=0, priority=10, tenant="b", node_ids=("n-one", "n-two"))
    assert [state_of(books, lease) for lease in others] == [LeaseState.PREEMPTING] * 2
    assert {state_of(books, lease) for lease in (*dear, *cheap)} == {LeaseState.ACTIVE}

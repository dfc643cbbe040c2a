"""Nodes are ordered for those who wait, as few as will do, and only where nothing else serves them."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.supply import Means, OrderState, PoolBound, Way
from aliquot.coordinator.core.books.tenancy.specs import Amount, Budget, Quota, TenantSpec
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import InvalidField, NeverFits
from tests.core.harness import node, request
from tests.supply.world import HOUR_MS, LEAD_MS, MINUTE_MS, Site, shape


def site(devices: int = 4) -> Site:
    """A pool with one node of its own."""
    pool = Site()
    pool.do(c.DeclareNode(node("own", devices, agentless=True)))
    return pool


def test_a_request_that_nothing_on_offer_could_ever_serve_is_refused_and_one_that_a_shape_would_serve_waits() -> None:
    pool = Site()
    with pytest.raises(NeverFits):
        pool.allocate(request())
    pool.declare(shape(devices=2, nodes_max=2))
    with pytest.raises(NeverFits):
        pool.allocate(request(models=(("H100-80",),)))
    with pytest.raises(NeverFits):
        pool.allocate(request(count=3))
    assert pool.allocate(request(count=2)).waiting
    assert pool.allocate(request(count=2, gang_size=2)).waiting
    with pytest.raises(NeverFits):
        pool.allocate(request(count=2, gang_size=3))


def test_why_a_request_waits_that_only_a_shape_on_offer_could_serve() -> None:
    pool = Site()
    pool.declare(shape(devices=2, nodes_max=2, model="H100-80"))
    asked = request(count=2, models=(("H100-80",),))
    told = pool.ask(Explain(asked))
    assert not told.fits_now
    assert not told.impossible
    assert "no node that is here" in told.summary
    lease = pool.allocate(asked)
    assert lease.waiting
    assert pool.ask(ExplainLease(lease.lease_id)).summary == told.summary


def test_nodes_are_ordered_within_the_reaction_time_and_only_as_many_as_those_who_wait_need() -> None:
    pool = site()
    pool.declare(shape(devices=4))
    for _ in range(4 + 6):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert [order.way for order in pool.orders] == [Way.ADD, Way.ADD]
    assert all(order.why for order in pool.orders)
    pool.pass_by(5 * MINUTE_MS)
    assert len(pool.orders) == 2, "nodes on their way count as there"
    pool.serve()
    assert not pool.orders
    assert not len(pool.state.lines)


def test_without_acting_there_is_advice_and_nothing_is_ordered() -> None:
    pool = site()
    pool.declare(shape(), act=False)
    lease = [pool.allocate(request()) for _ in range(5)][-1]
    pool.pass_by(5 * MINUTE_MS)
    assert not pool.orders
    (advice,) = pool.looked().add
    assert advice.name == "big-1"
    assert lease.lease_id in advice.why
    assert "ordering is off" in " ".join(pool.ask(ExplainLease(lease.lease_id)).notes)


def test_who_waits_is_told_that_a_node_is_on_its_way() -> None:
    pool = site()
    pool.declare(shape())
    lease = [pool.allocate(request()) for _ in range(5)][-1]
    assert "is ordered if nothing else serves it" in " ".join(pool.ask(ExplainLease(lease.lease_id)).notes)
    pool.pass_by(30_000)
    assert "a node is on its way: big-1 (order-1), expected in" in " ".join(
        pool.ask(ExplainLease(lease.lease_id)).notes
    )


def test_the_shape_that_serves_a_line_at_the_least_cost_is_ordered() -> None:
    pool = site(1)
    small = shape("small", 1, price_micro=1_100_000)
    big = shape("eight", 8, price_micro=7_000_000)
    pool.declare(small, big)
    pool.allocate(request())
    for _ in range(2):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert [order.shape for order in pool.orders] == ["small", "small"]
    for _ in range(6):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert [order.shape for order in pool.orders] == ["small", "small", "eight"]


def test_a_gang_gets_nodes_only_for_the_members_that_do_not_fit_already() -> None:
    pool = site(4)
    pool.declare(shape(devices=4, nodes_max=8))
    pool.allocate(request(count=4, gang_size=3))
    pool.pass_by(30_000)
    assert len(pool.orders) == 2


def test_a_request_that_a_limit_keeps_out_gets_no_node() -> None:
    pool = site(1)
    pool.declare(shape())
    pool.do(c.Apply(tenants=((TenantSpec("a", Quota(limit=Amount(2_000, -1))), 0),)))
    for _ in range(5):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert len(pool.orders) == 1
    assert pool.state.supply.orders[1].why.count("more like it") == 0, "only one of them may start"


def test_what_ends_before_a_node_would_be_there_is_waited_for() -> None:
    pool = site(1)
    pool.declare(shape())
    pool.allocate(request(time_limit_ms=LEAD_MS, grace_ms=0))
    pool.allocate(request())
    pool.pass_by(30_000)
    assert not pool.orders
    (served,) = pool.looked().served
    assert served.means is Means.WAIT


def test_reclaim_is_used_before_a_node_is_ordered_and_where_it_is_not_among_the_means_it_is_not_waited_for() -> None:
    for means, ordered in (((Means.RECLAIM,), 0), ((), 1)):
        pool = Site(CoreConfig(reclaim_min_run_ms=60_000))
        pool.connect(node("own", 1))
        pool.declare(shape(), means=means)
        pool.do(c.Apply(tenants=((TenantSpec("owner", Quota(guaranteed=Amount(1_000, 0))), 0),)))
        pool.activate(pool.allocate(request(tenant="borrower", min_run_ms=60_000)))
        pool.advance(5_000)
        owner = pool.allocate(request(tenant="owner"))
        pool.pass_by(10_000)
        assert len(pool.open(Way.ADD)) == ordered
        if means:
            assert [served.means for served in pool.looked().served] == [Means.RECLAIM]
            pool.pass_by(60_000)
            assert owner.lease_id in pool.state.holds, "somebody ends for it"
            assert all(owner.lease_id not in order.why for order in pool.orders)


def test_never_more_nodes_than_a_shape_a_pool_or_the_budget_allows() -> None:
    bounds: tuple[tuple[int, tuple[PoolBound, ...], dict[str, Any], int], ...] = (
        (2, (), {}, 2),
        (9, (PoolBound("default", 3),), {}, 3),
        (9, (), {"hour_micro": 25_000_000}, 2),
        (9, (), {"month_micro": 15_000_000}, 1),
        (9, (), {"orders_max": 1}, 1),
    )
    for nodes_max, pools, rules, allowed in bounds:
        pool = site(1)
        pool.declare(shape("s", 1, price_micro=10_000_000, nodes_max=nodes_max), pools=pools, **rules)
        for _ in range(9):
            pool.allocate(request())
        pool.pass_by(30_000)
        assert len(pool.orders) == allowed, (nodes_max, pools, rules)
        assert pool.looked().unserved[0].why, "somebody is told why there is no more"


def test_a_request_that_is_withdrawn_takes_back_an_order_that_nobody_has_begun_with() -> None:
    pool = site(1)
    pool.declare(shape())
    pool.allocate(request())
    waiting = pool.allocate(request())
    pool.pass_by(30_000)
    assert len(pool.orders) == 1
    pool.do(c.Release(waiting.lease_id))
    pool.pass_by(30_000)
    assert not pool.orders
    assert [order.state for order in pool.state.supply.closed] == [OrderState.WITHDRAWN]


def test_a_budget_that_is_used_up_orders_nothing_for_its_tenant() -> None:
    pool = site(1)
    pool.declare(shape())
    pool.do(c.Apply(tenants=((TenantSpec("a", budget=Budget(share_milli_ms=1)), 0),)))
    pool.allocate(request())
    pool.pass_by(10_000)
    pool.allocate(request())
    pool.pass_by(30_000)
    assert not pool.orders


def test_thousands_of_equal_requests_are_counted_and_not_tried_one_by_one() -> None:
    pool = site(1)
    pool.declare(shape(devices=8, nodes_max=100), orders_max=100)
    for _ in range(1 + 250):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert len(pool.orders) == 32


def test_what_nobody_could_mean_is_refused() -> None:
    pool = site(1)
    for wrong in ((shape(), shape()), (shape(nodes_min=5),), (shape(devices=0),), (shape(machines=("a",)),)):
        with pytest.raises(InvalidField):
            pool.declare(*wrong)
    pool.declare(shape())
    version = pool.state.supply.version
    pool.declare(shape())
    assert pool.state.supply.version == version, "the same again changes nothing"


def test_the_books_are_the_same_after_a_replay_and_from_a_snapshot() -> None:
    pool = site(1)
    pool.declare(shape("s", 1))
    for _ in range(4):
        pool.allocate(request())
    pool.pass_by(30_000)
    pool.serve()
    pool.pass_by(30_000)
    for other in (pool.replayed(), pool.restored()):
        mine, theirs = pool.state.supply, other.supply
        assert (mine.spec, mine.orders, mine.slots) == (theirs.spec, theirs.orders, theirs.slots)
        assert list(mine.closed) == list(theirs.closed)


def test_looks_come_by_the_clock_alone_while_somebody_waits_and_nothing_happens() -> None:
    pool = site(1)
    pool.declare(shape(), act=False)
    for _ in range(2):
        pool.allocate(request())
    pool.pass_by(MINUTE_MS)
    looks = 0
    for _ in range(60):
        pool.now_ms += 1_000
        while (due_ms := pool.decider.next_due_ms(pool.now_ms)) is not None and due_ms <= pool.now_ms:
            pool.do(c.Tick())
            looks += 1
            assert looks <= 12, "a look that finds nothing to do is not made again at once"
    assert looks >= 5


def test_spare_nodes_are_ordered_ahead_of_those_who_will_ask_and_stay() -> None:
    pool = site(4)
    with pytest.raises(InvalidField):
        pool.declare(shape(), spare_permille=200)
    pool.declare(shape(devices=4), spare_permille=200, headroom_permille=200)
    for _ in range(3):
        pool.allocate(request())
    pool.pass_by(2 * MINUTE_MS)
    assert not pool.orders, "a quarter is free"
    pool.allocate(request())
    pool.pass_by(2 * MINUTE_MS)
    (order,) = pool.orders
    assert "would be free" in order.why
    pool.serve()
    pool.pass_by(HOUR_MS, 60_000)
    assert not pool.orders
    assert len(pool.looked().nodes) == 1

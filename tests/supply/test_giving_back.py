"""Nodes go when they are empty for long enough, and never where anybody counts on them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import ExpectedUse, Forecast
from aliquot.coordinator.core.books.supply import OrderState, Way
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, QuotaWindow, TenantSpec
from aliquot.coordinator.core.values.types import NodeState
from tests.core.harness import node, request
from tests.supply.world import HOUR_MS, MINUTE_MS, Site, shape


def grown(nodes: int = 1, **more: Any) -> Site:
    """A pool to which nodes have come, all of them empty again; nothing was given back yet."""
    pool = Site()
    pool.do(c.DeclareNode(node("own", 1, agentless=True)))
    of_shape = {key: more.pop(key) for key in ("nodes_min", "price_micro") if key in more}
    pool.declare(shape("s", 1, nodes_max=4, **of_shape), **more)
    leases = [pool.allocate(request()) for _ in range(1 + nodes)]
    pool.pass_by(20_000)
    pool.serve()
    assert len(pool.looked().nodes) == nodes
    for lease in leases:
        pool.do(c.Release(lease.lease_id))
    return pool


def test_a_node_that_is_empty_for_long_enough_is_closed_given_back_and_forgotten() -> None:
    pool = grown()
    pool.pass_by(9 * MINUTE_MS)
    assert not pool.orders
    pool.pass_by(15 * MINUTE_MS)
    (order,) = pool.open(Way.REMOVE)
    assert "empty for" in order.why
    assert not pool.state.nodes["n-s-1"].grantable
    pool.serve()
    assert "n-s-1" not in pool.state.nodes
    assert pool.last(OrderState.DONE)[-1].way is Way.REMOVE


def test_what_was_used_between_two_looks_is_not_empty() -> None:
    pool = grown(idle_ms=20 * MINUTE_MS)
    for _ in range(6):
        leases = [pool.allocate(request()) for _ in range(2)]
        for lease in leases:
            pool.do(c.Release(lease.lease_id))
        pool.pass_by(10 * MINUTE_MS)
    assert not pool.orders


def test_a_node_is_given_back_once_a_day_at_most() -> None:
    pool = grown()
    pool.pass_by(HOUR_MS)
    pool.serve()
    assert "n-s-1" not in pool.state.nodes
    reversals = 0
    for _ in range(8):
        leases = [pool.allocate(request()) for _ in range(2)]
        pool.pass_by(30_000)
        pool.serve()
        for lease in leases:
            pool.do(c.Release(lease.lease_id))
        pool.pass_by(HOUR_MS, 60_000)
        pool.serve()
    by_name: dict[str, list[Way]] = {}
    for order in pool.state.supply.closed:
        by_name.setdefault(order.node_name, []).append(order.way)
    for ways in by_name.values():
        reversals = sum(one is not other for one, other in pairwise(ways))
        assert reversals <= 2, ways


def test_guarantees_keep_nodes_that_they_count_on() -> None:
    pool = grown()
    pool.do(c.Apply(tenants=((TenantSpec("owner", Quota(guaranteed=Amount(2_000, 0))), 0),)))
    pool.pass_by(2 * HOUR_MS, 60_000)
    assert not pool.orders
    assert {kept.why for kept in pool.looked().kept} == {"guarantees count on it"}


def test_a_guarantee_that_a_window_will_raise_keeps_nodes_before_it_opens() -> None:
    pool = grown()
    later = QuotaWindow("daily 23:00-23:30", guaranteed=Amount(2_000, 0))
    pool.do(c.Apply(tenants=((TenantSpec("owner", Quota(windows=(later,))), 0),)))
    pool.pass_by(2 * HOUR_MS, 60_000)
    assert not pool.orders
    assert {kept.why for kept in pool.looked().kept} == {"guarantees count on it"}


def test_headroom_and_the_least_number_are_kept() -> None:
    pool = grown(2, headroom_permille=400)
    pool.allocate(request())
    pool.pass_by(2 * HOUR_MS, 60_000)
    assert len(pool.open(Way.REMOVE)) == 1, "one free of two that are left"
    pool = grown(2, nodes_min=1)
    pool.pass_by(2 * HOUR_MS, 60_000)
    assert len(pool.open(Way.REMOVE)) == 1


def test_a_node_that_somebody_waits_for_stays_as_long_as_nobody_has_begun_with_taking_it_away() -> None:
    pool = grown()
    pool.pass_by(HOUR_MS)
    assert len(pool.open(Way.REMOVE)) == 1
    leases = [pool.allocate(request()) for _ in range(2)]
    pool.pass_by(20_000)
    assert not pool.orders
    assert not any(pool.again(lease).waiting for lease in leases)


def test_what_an_administrator_has_closed_is_left_alone() -> None:
    pool = grown()
    pool.do(c.Cordon("s-1", reason="by hand"))
    pool.pass_by(2 * HOUR_MS, 60_000)
    assert not pool.orders


def test_a_node_that_something_holds_after_all_is_not_taken_away() -> None:
    pool = grown()
    pool.pass_by(HOUR_MS)
    (order,) = pool.open(Way.REMOVE)
    pool.do(c.Cordon("s-1", cordoned=False))
    leases = [pool.allocate(request()) for _ in range(2)]
    assert not any(pool.again(lease).waiting for lease in leases)
    assert pool.take() == ()
    assert [each.state for each in pool.last(OrderState.WITHDRAWN)] == [OrderState.WITHDRAWN]
    assert order.number not in pool.state.supply.orders


def test_a_forecast_only_has_nodes_come_earlier_and_is_withdrawn_when_it_is_unfit() -> None:
    pool = Site()
    pool.do(c.DeclareNode(node("own", 1, agentless=True)))
    pool.declare(shape("s", 1, nodes_max=4))
    at_ms = pool.now_ms + MINUTE_MS

    def expect(*, fit: bool) -> None:
        points = (ExpectedUse(at_ms, 3_000, 2_000, 4_000),)
        series = c.Expected("default", "A100-40", Forecast(pool.now_ms, points, fit))
        pool.do(c.ExpectDemand((series,)))
        pool.pass_by(20_000)

    expect(fit=False)
    assert not pool.orders
    expect(fit=True)
    assert len(pool.orders) == 2
    assert all(order.early for order in pool.orders)
    expect(fit=False)
    assert not pool.orders


def test_a_node_that_was_lost_is_cancelled_and_forgotten() -> None:
    pool = Site()
    pool.connect(node("own", 1))
    pool.declare(shape("s", 1, nodes_max=1), late_ms=5 * MINUTE_MS)
    kept = pool.activate(pool.allocate(request()))
    waiting = pool.allocate(request())
    pool.pass_by(20_000)
    (order,) = pool.take()
    pool.accept(order)
    pool.connect(node("s-1", 1))
    pool.settle()
    pool.activate(pool.again(waiting))
    pool.do(c.Release(waiting.lease_id))
    pool.report(pool.again(waiting), c.ReportStatus.GONE)
    pool.do(c.NodeSilent("n-s-1", pool.sessions["n-s-1"], lost=True))
    assert pool.state.nodes["n-s-1"].state is NodeState.LOST
    pool.pass_by(10 * MINUTE_MS)
    (removal,) = pool.take()
    pool.accept(removal)
    pool.pass_by(20_000)
    assert "n-s-1" not in pool.state.nodes
    assert not pool.again(kept).waiting

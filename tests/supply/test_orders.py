"""Orders are carried out once, whatever becomes of whoever carries them out, and of the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.supply import NodeOrdered, OrderState, Way
from aliquot.coordinator.core.values.errors import OrderNotFound, OrderTaken
from tests.core.harness import node, request
from tests.supply.world import HOUR_MS, LEAD_MS, MINUTE_MS, Site, shape


def ordered(**more: Any) -> Site:
    """A pool in which one node was just ordered."""
    pool = Site()
    pool.do(c.DeclareNode(node("own", 1, agentless=True)))
    pool.declare(shape("s", 1, nodes_max=2), **more)
    pool.allocate(request())
    pool.allocate(request())
    pool.pass_by(20_000)
    assert len(pool.orders) == 1
    return pool


def test_an_order_is_taken_by_one_and_by_another_only_once_the_first_was_not_heard_for_too_long() -> None:
    pool = ordered()
    (order,) = pool.take("first")
    assert not pool.take("second")
    assert pool.take("first") == (order,), "asking again gives the same"
    with pytest.raises(OrderTaken):
        pool.accept(order, "second")
    pool.pass_by(6 * MINUTE_MS)
    (again,) = pool.take("second")
    assert again.order_id == order.order_id
    with pytest.raises(OrderTaken):
        pool.accept(order, "first")
    assert pool.accept(again, "second", reference="i-1").reference == "i-1"
    assert pool.accept(again, "second").state is OrderState.UNDER_WAY, "said twice"


def test_a_node_that_comes_ends_its_order_and_is_used() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order)
    pool.pass_by(LEAD_MS)
    pool.arrive(order)
    pool.pass_by(15_000)
    (done,) = pool.last(OrderState.DONE)
    assert done.node_id == "n-s-1"
    assert not len(pool.state.lines)


def test_one_that_fails_is_tried_again_a_few_times_and_then_its_shape_rests() -> None:
    pool = ordered()
    for number in range(5):
        (order,) = pool.take()
        pool.do(c.ReportOrder(order.number, "runner", accepted=False, problem="no stock"))
        assert not [each for each in pool.take() if each.way is Way.ADD], number
        pool.pass_by(2 * MINUTE_MS)
    (failed,) = pool.last(OrderState.FAILED)
    assert failed.problem == "no stock"
    assert failed.tries == 5
    cancel = [order for order in pool.state.supply.orders.values() if order.way is Way.REMOVE]
    assert cancel, "one of the tries may have brought a node after all"


def test_one_that_never_comes_is_given_up_cancelled_and_ordered_anew_and_comes_too_late_closed() -> None:
    pool = ordered(late_ms=10 * MINUTE_MS)
    (order,) = pool.take()
    pool.accept(order, reference="i-7")
    pool.pass_by(LEAD_MS + 9 * MINUTE_MS)
    assert len(pool.orders) == 1, "fifteen minutes may be what a provider takes"
    pool.pass_by(2 * MINUTE_MS)
    (cancel,) = pool.open(Way.REMOVE)
    assert (cancel.node_name, cancel.reference) == ("s-1", "i-7")
    assert pool.take() == (pool.orders[0],)
    pool.arrive(order)
    assert not pool.state.nodes["n-s-1"].grantable, "it is to go: nothing may be placed there"
    pool.pass_by(3 * MINUTE_MS)
    assert [each.node_name for each in pool.open(Way.ADD)] == ["s-2"]


def test_one_that_comes_late_is_kept_where_nobody_has_begun_to_cancel_it() -> None:
    pool = ordered(late_ms=10 * MINUTE_MS)
    (order,) = pool.take()
    pool.accept(order)
    pool.pass_by(LEAD_MS + 11 * MINUTE_MS)
    assert len(pool.open(Way.REMOVE)) == 1
    pool.arrive(order)
    pool.pass_by(3 * MINUTE_MS)
    assert not pool.orders
    assert not len(pool.state.lines)


def test_a_provider_that_takes_fifteen_minutes_is_waited_for_and_nothing_is_ordered_twice() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order, due_ms=pool.now_ms + 15 * MINUTE_MS)
    pool.pass_by(16 * MINUTE_MS)
    assert [each.number for each in pool.orders] == [order.number]
    pool.arrive(order)
    pool.pass_by(15_000)
    assert not len(pool.state.lines)


def test_an_order_that_comes_twice_is_one_node_more_that_counts_and_goes_when_it_is_empty() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order)
    pool.arrive(order)
    twice = node("other", 1, agentless=True, labels=(("supply.aliquot.dev/shape", "s"),))
    pool.do(c.DeclareNode(twice))
    pool.pass_by(20_000)
    assert {here.here.name for here in pool.looked().nodes} == {"s-1", "other"}
    for _ in range(3):
        pool.allocate(request())
    pool.pass_by(30_000)
    assert not pool.open(Way.ADD), "no more than two of the shape"
    for lease in list(pool.state.leases):
        pool.do(c.Release(lease))
    pool.pass_by(HOUR_MS)
    assert {each.node_name for each in pool.open(Way.REMOVE)} == {"s-1", "other"}


def test_whoever_carries_out_may_name_the_node() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order, node_name="ip-10-0-0-7")
    pool.arrive(order, "ip-10-0-0-7")
    pool.pass_by(15_000)
    assert pool.last(OrderState.DONE)
    assert [here.here.name for here in pool.looked().nodes] == ["ip-10-0-0-7"]


def test_the_name_may_be_told_when_it_is_known_and_by_nobody_else() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order)
    with pytest.raises(OrderTaken):
        pool.accept(order, "another", node_name="ip-7")
    assert pool.accept(order, node_name="ip-7").node_name == "ip-7"
    assert pool.accept(order).node_name == "ip-7", "said twice"
    pool.arrive(order, "ip-7")
    pool.pass_by(15_000)
    assert [each.node_id for each in pool.last(OrderState.DONE)] == ["n-ip-7"]


def test_one_that_was_under_way_may_fail_after_all_and_is_tried_again() -> None:
    pool = ordered()
    (order,) = pool.take()
    pool.accept(order)
    with pytest.raises(OrderTaken):
        pool.do(c.ReportOrder(order.number, "another", accepted=False, problem="revoked"))
    pool.do(c.ReportOrder(order.number, "runner", accepted=False, problem="revoked"))
    (again,) = pool.orders
    assert (again.state, again.problem) == (OrderState.ORDERED, "revoked")
    pool.pass_by(MINUTE_MS)
    assert [each.number for each in pool.take()] == [order.number]


def test_an_administrator_withdraws_an_order_and_what_may_come_is_cancelled() -> None:
    pool = ordered(act=True)
    (order,) = pool.take()
    pool.accept(order, reference="i-9")
    pool.do(c.WithdrawOrder(order.number))
    (cancel,) = pool.open(Way.REMOVE)
    assert cancel.reference == "i-9"
    with pytest.raises(OrderNotFound):
        pool.do(c.WithdrawOrder(order.number))


def test_every_order_has_its_reason_in_the_record_of_who_did_what() -> None:
    pool = ordered()
    entries = [entry for entry in pool.state.access.audit if entry.action == "OrderNode"]
    assert [entry.principal for entry in entries] == ["pool:self"]
    assert "would wait longer than the target" in entries[0].subject
    assert sum(isinstance(fact, NodeOrdered) for fact in pool.facts) == 1


def test_a_machine_that_sleeps_is_woken_and_put_to_sleep_under_its_own_name() -> None:
    pool = Site()
    pool.do(c.DeclareNode(node("own", 1, agentless=True)))
    pool.declare(shape("metal", 1, nodes_max=2, machines=("rack-a", "rack-b")))
    pool.allocate(request())
    lease = pool.allocate(request())
    pool.pass_by(20_000)
    (order,) = pool.take()
    assert order.node_name == "rack-a"
    pool.accept(order)
    spec = node("rack-a", 1)
    pool.connect(spec)
    pool.pass_by(15_000)
    assert not pool.again(lease).waiting
    pool.activate(pool.again(lease))
    pool.do(c.Release(lease.lease_id))
    pool.report(pool.again(lease), c.ReportStatus.GONE)
    pool.pass_by(HOUR_MS)
    (removal,) = pool.take()
    assert (removal.way, removal.node_name) == (Way.REMOVE, "rack-a")
    assert not pool.state.nodes["n-rack-a"].grantable
    pool.accept(removal)
    pool.do(c.NodeSilent("n-rack-a", pool.sessions["n-rack-a"], lost=True))
    pool.pass_by(15_000)
    assert not pool.orders
    assert "n-rack-a" in pool.state.nodes, "it is known while it sleeps"
    assert not pool.state.nodes["n-rack-a"].cordoned, "and open when it wakes"

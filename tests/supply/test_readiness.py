"""Room for requests like the latest, before anybody waits for it."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.supply import Way
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, TenantSpec
from aliquot.coordinator.core.deciding.supply.readiness import (
    DISPERSION,
    EXPECTED_MAX,
    FAR_LEADS,
    STAY_LEADS,
    at_most,
)
from tests.core.harness import node, request
from tests.supply.world import LEAD_MS, MINUTE_MS, Site, shape

WHOLE_NODE = 4


def site(**more: Any) -> Site:
    """One node of four devices, and more of that kind on offer."""
    pool = Site()
    pool.do(c.DeclareNode(node("own", WHOLE_NODE, agentless=True)))
    pool.declare(shape(devices=WHOLE_NODE), **{"ready_permille": 900, **more})
    return pool


def test_whoever_has_asked_for_a_node_is_likely_to_ask_for_another() -> None:
    pool = site()
    pool.allocate(request(count=WHOLE_NODE))
    pool.pass_by(MINUTE_MS)
    (order,) = pool.orders
    assert order.way is Way.ADD
    assert "requests like the latest" in order.why
    assert not order.early


def test_without_readiness_nobody_is_expected() -> None:
    pool = site(ready_permille=0)
    pool.allocate(request(count=WHOLE_NODE))
    pool.pass_by(MINUTE_MS)
    assert not pool.orders


def test_room_that_is_there_is_not_ordered_again_and_a_sum_of_devices_is_no_room() -> None:
    pool = site()
    pool.allocate(request(count=1))
    pool.pass_by(MINUTE_MS)
    assert not pool.orders, "the next of them fits beside it"
    pool = site(ready_permille=800)
    pool.do(c.DeclareNode(node("other", WHOLE_NODE, agentless=True)))
    pool.allocate(request(count=3))
    pool.allocate(request(count=3))
    pool.pass_by(MINUTE_MS)
    assert len(pool.orders) == 1, "two devices are free, on two nodes"
    pool.pass_by(MINUTE_MS)
    assert len(pool.orders) == 1, "one that is on its way is room"


def test_nodes_that_came_for_a_burst_stay_for_it_and_go_when_it_is_over() -> None:
    pool = site(keep_ms=0, idle_ms=0)
    lease = pool.allocate(request(count=WHOLE_NODE))
    pool.pass_by(MINUTE_MS)
    pool.serve()
    pool.pass_by(MINUTE_MS)
    assert len(pool.looked().nodes) == 1
    assert {kept.why for kept in pool.looked().kept} == {"it is kept for requests like the latest"}
    pool.do(c.Release(lease.lease_id))
    pool.pass_by(FAR_LEADS * LEAD_MS)
    assert not pool.open(Way.ADD)
    pool.pass_by(STAY_LEADS * LEAD_MS)
    assert len(pool.open(Way.REMOVE)) == 1


def test_a_node_stays_empty_the_longer_the_longer_another_takes_to_come() -> None:
    pool = site(keep_ms=0, idle_ms=0)
    pool.do(c.DeclareNode(node("other", WHOLE_NODE, agentless=True)))
    first, second = (pool.allocate(request(count=WHOLE_NODE)) for _ in range(2))
    pool.pass_by(MINUTE_MS)
    pool.serve()
    for lease in (first, second):
        pool.do(c.Release(lease.lease_id))
    pool.pass_by(STAY_LEADS * LEAD_MS // 2)
    assert not pool.open(Way.REMOVE)


def test_what_a_limit_keeps_out_is_not_expected() -> None:
    pool = site(ready_permille=0)
    pool.do(c.Apply(tenants=((TenantSpec("t", Quota(limit=Amount(WHOLE_NODE * 1000, -1))), 0),)))
    pool.allocate(request(count=WHOLE_NODE, tenant="t"))
    pool.pass_by(FAR_LEADS * LEAD_MS + MINUTE_MS)
    pool.declare(shape(devices=WHOLE_NODE), ready_permille=900)
    for _ in range(8):
        pool.allocate(request(count=WHOLE_NODE, tenant="t"))
    pool.pass_by(5 * MINUTE_MS)
    assert not pool.orders


def test_bounds_hold_for_what_is_ordered_ahead() -> None:
    pool = site(hour_micro=1)
    pool.declare(shape(devices=WHOLE_NODE, price_micro=2), ready_permille=900, hour_micro=1)
    pool.allocate(request(count=WHOLE_NODE))
    pool.pass_by(MINUTE_MS)
    assert not pool.orders


def test_a_guarantee_is_no_reason_to_expect() -> None:
    pool = site()
    pool.do(c.Apply(tenants=((TenantSpec("owner", Quota(guaranteed=Amount(1_000, 0))), 0),)))
    pool.pass_by(5 * MINUTE_MS)
    assert not pool.orders


def exact(mean: float, number: int) -> float:
    """The chance that it is not exceeded, from the definition of the negative binomial."""
    size, kept = mean / (DISPERSION - 1), 1 / DISPERSION
    terms = (
        math.exp(
            math.lgamma(size + k)
            - math.lgamma(size)
            - math.lgamma(k + 1)
            + size * math.log(kept)
            + k * math.log(1 - kept)
        )
        for k in range(number + 1)
    )
    return math.fsum(terms)


@given(mean=st.floats(0.01, 20), permille=st.integers(1, 990))
def test_the_quantile_is_the_least_number_that_is_not_exceeded_so_often(mean: float, permille: int) -> None:
    found = at_most(mean, permille)
    assert 0 <= found < EXPECTED_MAX
    assert exact(mean, found) * 1000 >= permille - 1e-6
    assert not found or exact(mean, found - 1) * 1000 < permille + 1e-6

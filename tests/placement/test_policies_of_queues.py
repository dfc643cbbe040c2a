"""Training packs and serving spreads: a policy for a queue or a pool, or for what a request says that it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import PoolSpec, QueueSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.prices import linear_prices
from aliquot.coordinator.core.rules.offers import LaidOut
from aliquot.coordinator.core.values.errors import InvalidField
from aliquot.coordinator.core.values.types import Demand
from bench.lib.scanning import ScanIndex
from tests.core.harness import Books, node, request
from tests.placement.pools import Books as Held
from tests.placement.pools import node as spec
from tests.placement.pools import pool
from tests.supply.world import shape
from tests.tenancy.declaring import declare

SERVING, TRAINING = QueueSpec("serving", placement="spread"), QueueSpec("training", placement="binpack")


def books(*specs: PoolSpec | QueueSpec, policy: str = "price") -> Books:
    there = Books(CoreConfig(policy=policy, strict_tenants=False))
    for name in ("one", "two"):
        there.do(c.DeclareNode(node(name, 2, agentless=True)))
    declare(there, *specs)
    return there


def nodes_of(there: Books, number: int, **said: Any) -> int:
    """On how many nodes so many quarters are put."""
    leases = [there.allocate(request(250, **said)) for _ in range(number)]
    return len({lease.slices[0].plan.node_id for lease in leases})


def test_two_queues_with_two_policies_in_one_pool() -> None:
    there = books(SERVING, TRAINING)
    assert nodes_of(there, 2, queue="serving") == 2
    assert nodes_of(there, 2, queue="training") == 1


def test_a_queue_has_it_from_above_and_then_from_its_pool() -> None:
    there = books(SERVING, QueueSpec("chat", parent="serving"), PoolSpec("default", placement="spread"))
    assert nodes_of(there, 2, queue="chat") == 2
    assert nodes_of(books(PoolSpec("default", placement="spread")), 2, pool="default") == 2
    assert nodes_of(books(PoolSpec("default", placement="spread"), TRAINING), 2, pool="default", queue="training") == 1
    assert nodes_of(books(PoolSpec("default", placement="spread")), 2) == 1, "it is not for that pool alone"


@pytest.mark.parametrize(("workload", "nodes"), [("training", 1), ("inference", 2), ("development", 1), ("", 1)])
def test_a_label_is_a_hint_where_a_queue_goes_by_it(workload: str, nodes: int) -> None:
    labels = (("workload-type", workload),) if workload else ()
    assert nodes_of(books(QueueSpec("all", placement="workload")), 2, queue="all", labels=labels) == nodes
    assert nodes_of(books(QueueSpec("all")), 2, queue="all", labels=labels) == 1, "it says nothing of workloads"


def test_a_policy_that_nobody_knows_is_refused_with_those_there_are() -> None:
    for each in (QueueSpec("serving", placement="balanced"), PoolSpec("default", placement="balanced")):
        with pytest.raises(InvalidField, match=r"\[0\].placement: .*'balanced'; there are .*binpack, .*price, spread"):
            books(each)


def test_who_waits_is_placed_by_the_policy_of_its_queue() -> None:
    there = books(SERVING)
    full = [there.allocate(request(1000)) for _ in range(4)]
    waiting = [there.allocate(request(250, queue="serving")) for _ in range(2)]
    assert not any(lease.slices for lease in waiting)
    for lease in full:
        there.do(c.Release(lease.lease_id))
    there.settle()
    assert len({there.state.leases[lease.lease_id].slices[0].plan.node_id for lease in waiting}) == 2


def test_each_policy_keeps_scores_of_its_own_that_are_those_of_a_full_scan() -> None:
    inventory = pool(*(spec(f"n{number}", 2) for number in range(3)))
    engine, held = Engine(inventory, make_policy("price")), Held(inventory)
    oracles = {name: Engine(inventory, make_policy(name), index=ScanIndex) for name in ("price", "spread", "binpack")}
    small = Demand(share_milli=300)
    for number in range(12):
        name = ("price", "spread", "binpack")[number % 3]
        chosen = engine.place(msgspec.structs.replace(small, placement=name))
        assert chosen == oracles[name].place(small)
        assert chosen is not None
        held.apply(small, chosen)


def test_nodes_that_could_be_ordered_are_packed_whoever_asks() -> None:
    laid_out = LaidOut()
    laid_out.add(shape())
    laid_out.add(shape())
    put = [laid_out.put(Demand(share_milli=250, placement="spread")) for _ in range(2)]
    assert len({placement.node_ids for placement in put if placement is not None}) == 1


def test_prices_reach_whoever_places_by_them_and_who_comes_later() -> None:
    engine = Engine(pool(spec("a", 2)), make_policy("spread"))
    assert not engine.by_prices, "nothing is learnt for nobody"
    table = msgspec.structs.replace(linear_prices(), version=7)
    engine.set_prices(table)
    assert engine.place(Demand(placement="price")) is not None
    assert [policy.table.version for _, policy in engine.by_prices] == [7]
    engine.set_prices(msgspec.structs.replace(table, version=8))
    assert [policy.table.version for _, policy in engine.by_prices] == [8]


def test_a_policy_that_is_not_installed_any_more_is_as_none() -> None:
    engine = Engine(pool(spec("a", 2)), make_policy("binpack"))
    assert engine.place(Demand(share_milli=300, placement="gone")) == engine.place(Demand(share_milli=300))

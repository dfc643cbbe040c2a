"""Whatever is asked, the constraints hold: capacity, atomic gangs, anti-affinity, lists. Random pools and requests."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import POLICIES, Engine, make_policy
from aliquot.coordinator.core.placement.validity import objection
from aliquot.coordinator.core.values.types import Demand, Topology
from tests.core.inventories import canonical
from tests.placement.pools import GIB, Books, assert_sound, node, pool

NODES = 6

demands = st.builds(
    Demand,
    count=st.integers(0, 4),
    share_milli=st.sampled_from([0, 1, 100, 333, 500, 999, 1000]),
    memory_bytes=st.sampled_from([0, GIB, 30 * GIB, 79 * GIB]),
    gang_size=st.integers(1, 5),
    cpu_milli=st.sampled_from([0, 1000, 40_000]),
    affinity_group=st.sampled_from(["", "a", "b"]),
    max_per_node=st.integers(0, 2),
    spread_domains=st.booleans(),
    topology=st.sampled_from(list(Topology)),
    node_ids=st.sampled_from([(), ("n0", "n1"), ("nowhere",)]),
    avoid_node_ids=st.sampled_from([(), ("n2",), ("n0", "n3", "nowhere")]),
    avoid_device_uuids=st.sampled_from([(), ("GPU-n1-0", "GPU-n4-2")]),
)


def small_pool() -> Inventory:
    return pool(*(node(f"n{i}", 2 + i % 3 * 2, island_size=2, domain=f"d{i % 2}") for i in range(NODES)))


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=120, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    requests=st.lists(demands, min_size=1, max_size=25),
    leave=st.integers(0, 3),
)
def test_every_placement_keeps_every_constraint(policy: str, requests: list[Demand], leave: int) -> None:
    inventory = small_pool()
    engine, books = Engine(inventory, make_policy(policy)), Books(inventory)
    rng = random.Random(len(requests))
    for arrival, demand in enumerate(requests):
        groups_before = {node_id: dict(inventory.node(node_id).groups) for node_id in inventory.node_ids()}
        state_before = canonical(inventory)
        placement = engine.place(demand)
        assert canonical(inventory) == state_before
        assert engine.fits(demand) == (placement is not None)
        if placement is None:
            continue
        assert objection(engine, demand, placement) == ""
        assert len(placement.members) == demand.gang_size
        assert all(len(slices) == demand.count for slices in placement.members)
        assert not demand.node_ids or set(placement.node_ids) <= set(demand.node_ids)
        assert not set(placement.node_ids) & set(demand.avoid_node_ids)
        used = [plan.device_uuid for slices in placement.members for plan in slices]
        assert not set(used) & set(demand.avoid_device_uuids)
        if demand.max_per_node:
            for node_id, members in Counter(placement.node_ids).items():
                assert members + groups_before[node_id].get(demand.affinity_group, 0) <= demand.max_per_node
        if demand.topology is Topology.REQUIRE_ISLAND and demand.count > 1:
            for slices in placement.members:
                assert len({int(plan.device_uuid[-1]) // 2 for plan in slices}) == 1
        books.apply(demand, placement)
        for uuid in (*used[:1], f"GPU-n{arrival % NODES}-1"):
            inventory.withhold(uuid, rng.choice(["", "", "somebody"]))
        if leave and arrival % (leave + 1) == 0:
            books.undo(rng.randrange(len(books.live)))
        assert_sound(inventory)
    while books.live:
        books.undo(0)
    for uuid in inventory.device_uuids():
        inventory.withhold(uuid, "")
    assert canonical(inventory) == canonical(small_pool())


@settings(max_examples=80, deadline=None)
@given(demand=demands, held=st.lists(st.tuples(st.integers(0, 23), st.integers(1, 1000)), max_size=20))
def test_possible_and_explain_agree_with_placing(demand: Demand, held: list[tuple[int, int]]) -> None:
    """What is placed was possible; what is impossible is never placed; what fits now is explained as fitting."""
    inventory = small_pool()
    engine, books = Engine(inventory, make_policy("binpack")), Books(inventory)
    uuids = list(inventory.device_uuids())
    for device, share in held:
        one = Demand(share_milli=share, node_ids=(inventory.device(uuids[device % len(uuids)]).node_id,))
        placement = engine.place(one)
        if placement is not None:
            books.apply(one, placement)
    placement = engine.place(demand)
    shortfall = engine.explain(demand)
    assert shortfall.summary
    assert shortfall.impossible == (not engine.possible(demand))
    if placement is not None:
        assert engine.possible(demand)
        assert any(missing.reason == "FITS" for missing in shortfall.missing)
    elif not demand.avoid_device_uuids:
        assert all(missing.reason != "FITS" for missing in shortfall.missing)
    if shortfall.impossible:
        assert placement is None

"""What is placed fits, all of it or nothing, the same whatever is cached or hashed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import POLICIES, Engine, Policy, accelerated, make_policy
from aliquot.coordinator.core.placement import index as cached
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.values.types import Demand, Placement, SlicePlan, Topology
from bench.lib.published import BestFit, DotProd, Fgd
from bench.lib.scanning import ScanIndex
from bench.lib.teaching import teach
from tests.core.inventories import canonical
from tests.placement.histories import mixed_pool, random_demand
from tests.placement.pools import GIB, Books, assert_sound, node, pool


def churn(inventory: Inventory, rng: random.Random, books: Books) -> None:
    """Something other than a grant happens."""
    match rng.randrange(8):
        case 0 | 1 | 2 | 3 if books.live:
            books.undo(rng.randrange(len(books.live)))
        case 4:
            node_id = rng.choice(list(inventory.node_ids()))
            inventory.set_grantable(node_id, rng.random() < 0.8)
        case 5:
            uuid = rng.choice(list(inventory.device_uuids()))
            inventory.set_device(uuid, foreign_bytes=rng.choice([0, 0, GIB, 9 * GIB]), healthy=rng.random() < 0.9)
        case 6:
            uuid = rng.choice(list(inventory.device_uuids()))
            inventory.withhold(uuid, rng.choice(["", "", "big"]))
        case _:
            pass


def assert_placed_right(demand: Demand, placement: Placement, inventory: Inventory) -> None:
    assert len(placement.members) == demand.gang_size == len(placement.node_ids)
    for node_id, slices in zip(placement.node_ids, placement.members, strict=True):
        assert len(slices) == demand.count
        assert len({plan.device_uuid for plan in slices}) == demand.count
        assert {plan.node_id for plan in slices} <= {node_id}
        assert inventory.node(node_id).grantable
        assert node_id not in demand.avoid_node_ids
        for plan in slices:
            device = inventory.device(plan.device_uuid)
            assert device.healthy
            assert not device.withheld_for
            assert plan.device_uuid not in demand.avoid_device_uuids
            assert device.mig_profile == demand.mig_profile or (device.mig_profile and demand.or_mig)
            assert not demand.models or any(device.model in models for models in demand.models)
            if device.mig_profile:
                assert plan.share_milli == device.compute_milli >= demand.share_milli
                assert plan.memory_bytes >= demand.memory_bytes
            else:
                assert demand.share_milli in (0, plan.share_milli)
                assert demand.memory_bytes in (0, plan.memory_bytes)
            if plan.share_milli == 1000:
                assert device.slices == 0
    if demand.apart:
        assert (
            len({plan.device_uuid for plans in placement.members for plan in plans}) == demand.gang_size * demand.count
        )
    if demand.max_per_node:
        new = Counter(placement.node_ids)
        for node_id, members in new.items():
            before = inventory.node(node_id).groups.get(demand.affinity_group, 0)
            assert before + members <= demand.max_per_node


def suppose(inventory: Inventory, gone: Placement, engine: Engine, demand: Demand, *, look: bool) -> None:
    """Ask what would be without these slices."""
    plans = [plan for member in gone.members for plan in member]
    for plan in plans:
        inventory.release(plan)
    fits = engine.fits(demand)
    if look:
        assert fits == (engine.place(demand) is not None)


@pytest.mark.no_cover  # would more than double its time
@pytest.mark.parametrize(("name", "compiled"), [("price", True), *((name, False) for name in sorted(POLICIES))])
def test_cached_scores_decide_as_a_full_scan_does(name: str, compiled: bool) -> None:
    """Only the price policy has its scores compiled."""
    if compiled:
        warm_up()
    rng = random.Random(1 + compiled)
    inventory = mixed_pool(60)
    policy = make_policy(name)
    teach(policy, Counter(random_demand(rng) for _ in range(300)) + Counter({Demand(count=8): 300}), inventory)
    engine = Engine(inventory, policy, compiled=compiled)
    oracle = Engine(inventory, policy, index=ScanIndex)
    if isinstance(policy, Price):
        assert policy.table.by_memory, "tables of share and memory"
        assert policy.worths.together.any(), "and of places for several"
    books = Books(inventory)
    for arrival in range(400):
        demand = random_demand(rng)
        before = canonical(inventory)
        if books.live and arrival % 3 == 0:
            with inventory.trial():
                suppose(inventory, books.live[rng.randrange(len(books.live))][1], engine, demand, look=arrival % 2 == 0)
        placement = engine.place(demand)
        assert placement == oracle.place(demand)
        assert canonical(inventory) == before
        if placement is not None:
            assert_placed_right(demand, placement, inventory)
            books.apply(demand, placement)
        churn(inventory, rng, books)
        if arrival % 50 == 0:
            assert_sound(inventory)
            if arrival % 100 == 0:
                inventory.put_node(node(f"late{arrival}", 8, island_size=8))
                inventory.set_grantable(f"late{arrival}", True)
    assert_sound(inventory)


@pytest.mark.no_cover  # would more than double its time
def test_ten_thousand_events_decide_as_a_full_scan_does() -> None:
    """The default policy on requests like openb's, prices changing on the way, by the kernel where numba is."""
    warm_up()
    rng = random.Random(7)
    inventory = pool(
        *(node(f"a{i}", 8, cpu_milli=96_000) for i in range(12)), *(node(f"t{i}", 2, model="T4") for i in range(8))
    )
    policy = Price()
    engine = Engine(inventory, policy)
    oracle = Engine(inventory, policy, index=ScanIndex)
    books = Books(inventory)
    kinds = [
        Demand(share_milli=share, cpu_milli=cpu)
        for share in (1000, 1000, 810, 470, 320, 650, 230, 460, 160)
        for cpu in (3152, 8000, 11_400)
    ]
    kinds += [Demand(count=0, cpu_milli=12_500), Demand(count=2, cpu_milli=20_000), Demand(count=8, cpu_milli=88_000)]
    placed = 0
    for arrival in range(10_000):
        demand = rng.choice(kinds)
        placement = engine.place(demand)
        assert placement == oracle.place(demand)
        if placement is not None:
            placed += 1
            books.apply(demand, placement)
        for _ in range(1 + (placement is None)):
            if len(books.live) > 110 or placement is None:
                books.undo(rng.randrange(len(books.live)))
        if arrival % 2500 == 300:
            teach(policy, Counter(rng.choice(kinds) for _ in range(200)), inventory, arrival)
    assert placed > 8_000
    assert_sound(inventory)


def test_nothing_is_refused_that_fits() -> None:
    """Whole devices fill every ready device before the first refusal, whatever came before."""
    for name in sorted(POLICIES):
        inventory = pool(*(node(f"n{i}", 8) for i in range(10)))
        engine, books = Engine(inventory, make_policy(name)), Books(inventory)
        for _ in range(80):
            placement = engine.place(Demand())
            assert placement is not None, name
            books.apply(Demand(), placement)
        assert engine.place(Demand()) is None


def test_a_whole_device_is_never_shared_and_a_share_never_overcommits_memory() -> None:
    inventory = pool(node("a", 1))
    engine, books = Engine(inventory, make_policy("binpack")), Books(inventory)
    part = Demand(share_milli=100, memory_bytes=50 * GIB)
    placement = engine.place(part)
    assert placement is not None
    books.apply(part, placement)
    assert engine.place(Demand()) is None
    assert engine.place(part) is None, "the share is there, the memory is not"
    assert engine.place(Demand(share_milli=300)) is not None
    assert engine.place(Demand(share_milli=900)) is None, "nine tenths of the memory are not there"


def test_foreign_memory_is_not_granted() -> None:
    inventory = pool(node("a", 1))
    engine = Engine(inventory, make_policy("binpack"))
    inventory.set_device("GPU-a-0", foreign_bytes=GIB, healthy=True)
    placement = engine.place(Demand())
    assert placement is not None
    assert placement.members[0][0].memory_bytes == 80 * GIB - GIB // 2 - GIB
    inventory.set_device("GPU-a-0", foreign_bytes=40 * GIB, healthy=True)
    assert engine.place(Demand()) is None, "half of it belongs to somebody else"
    assert engine.place(Demand(share_milli=1000, memory_bytes=20 * GIB)) is not None


def test_a_gang_gets_all_members_or_none() -> None:
    inventory = pool(*(node(f"n{i}", 8) for i in range(4)))
    engine, books = Engine(inventory, make_policy("spread")), Books(inventory)
    small = Demand(share_milli=100)
    placement = engine.place(small)
    assert placement is not None
    books.apply(small, placement)
    before = canonical(inventory)
    assert engine.place(Demand(gang_size=4, count=8)) is None
    assert canonical(inventory) == before
    placement = engine.place(Demand(gang_size=3, count=8))
    assert placement is not None
    assert len(set(placement.node_ids)) == 3


def test_a_gang_of_parts_finds_the_packing_that_the_count_promises() -> None:
    inventory = pool(node("a", 3))
    engine = Engine(inventory, make_policy("binpack"))
    demand = Demand(gang_size=3, count=2, share_milli=500, topology=Topology.ANY)
    placement = engine.place(demand)
    assert placement is not None
    Books(inventory).apply(demand, placement)
    assert_sound(inventory)


def test_a_gang_that_avoids_devices_is_not_sent_to_a_domain_where_only_they_are_left() -> None:
    inventory = pool(node("n0", 2, domain="d0"), node("n1", 4, domain="d1"))
    demand = Demand(count=2, gang_size=2, topology=Topology.PREFER_ISLAND, avoid_device_uuids=("GPU-n1-0",))
    placement = Engine(inventory, BestFit()).place(demand)
    assert placement is not None
    assert sorted(placement.node_ids) == ["n0", "n1"]


def test_a_gang_prefers_the_smallest_domain_that_has_room() -> None:
    specs = [node(f"big{i}", 8, domain="big") for i in range(6)]
    specs += [node(f"small{i}", 8, domain="small") for i in range(3)]
    engine = Engine(pool(*specs), make_policy("spread"))
    placement = engine.place(Demand(gang_size=3, count=8))
    assert placement is not None
    assert set(placement.node_ids) == {"small0", "small1", "small2"}
    assert "failure domain small" in placement.note


def test_several_devices_come_from_one_island_where_possible() -> None:
    inventory = pool(node("a", 8, island_size=4), node("b", 8))
    engine, books = Engine(inventory, make_policy("binpack")), Books(inventory)
    for index in (0, 1):
        plan = Demand(node_ids=("a",))
        placement = engine.place(plan)
        assert placement is not None
        books.apply(plan, placement)
        assert index == int(placement.members[0][0].device_uuid[-1])
    placement = engine.place(Demand(count=4))
    assert placement is not None
    assert [plan.device_uuid[-1] for plan in placement.members[0]] == ["4", "5", "6", "7"]
    assert placement.note == "4 devices in one island"
    assert engine.place(Demand(count=6, topology=Topology.REQUIRE_ISLAND)) is None
    anywhere = engine.place(Demand(count=6, node_ids=("a",)))
    assert anywhere is not None
    assert "across islands" in anywhere.note


def test_model_alternatives_are_tried_in_order() -> None:
    inventory = pool(node("a", 1, model="A100-80"), node("h", 1, model="H100-80"))
    engine, books = Engine(inventory, make_policy("binpack")), Books(inventory)
    demand = Demand(models=(("H100-80",), ("A100-80",)))
    first = engine.place(demand)
    assert first is not None
    assert first.node_ids == ("h",)
    books.apply(demand, first)
    second = engine.place(demand)
    assert second is not None
    assert second.node_ids == ("a",)
    assert "alternative 2 of 2" in second.note


def test_members_of_a_group_spread_over_domains() -> None:
    inventory = pool(*(node(f"n{i}", 8, domain=f"rack{i % 3}") for i in range(6)))
    engine, books = Engine(inventory, make_policy("binpack")), Books(inventory)
    demand = Demand(share_milli=100, affinity_group="web", spread_domains=True)
    racks = []
    for _ in range(6):
        placement = engine.place(demand)
        assert placement is not None
        books.apply(demand, placement)
        racks.append(int(placement.node_ids[0][1:]) % 3)
    assert Counter(racks) == {0: 2, 1: 2, 2: 2}


def test_equal_places_go_to_the_least_busy() -> None:
    inventory = pool(node("a", 2), node("b", 2))
    engine = Engine(inventory, make_policy("spread"))
    for uuid in ("GPU-a-0", "GPU-a-1", "GPU-b-0"):
        engine.measured(uuid, 900)
    placement = engine.place(Demand(share_milli=100))
    assert placement is not None
    assert placement.members[0][0].device_uuid == "GPU-b-1"


_SCRIPT = """
import random
from aliquot.coordinator.core.placement import Engine, make_policy
from bench.lib.published import BestFit, DotProd, Fgd
from tests.placement.histories import mixed_pool, random_demand
from tests.placement.pools import Books
rng = random.Random(5)
inventory = mixed_pool(30)
engine, books = Engine(inventory, make_policy("spread")), Books(inventory)
for arrival in range(150):
    demand = random_demand(rng)
    placement = engine.place(demand)
    print(placement)
    if placement is not None:
        books.apply(demand, placement)
"""


def test_decisions_do_not_depend_on_the_hash_seed() -> None:
    outputs = set()
    for seed in ("0", "1", "12345"):
        env = dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env=env,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_compiled_scoring_may_come_in_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator starts on NumPy and is not to notice when the compiled code is there."""
    kernel = accelerated.kernel
    monkeypatch.setattr(cached, "kernel", lambda: None)
    warm_up()
    rng = random.Random(11)
    inventory = mixed_pool(40)
    policy = Price()
    together = {Demand(count=8, cpu_milli=40_000): 90, Demand(count=4, cpu_milli=9_000): 90, Demand(count=2): 50}
    teach(policy, Counter(together) + Counter(random_demand(rng) for _ in range(100)), inventory)
    assert policy.table.by_memory
    engine, oracle = Engine(inventory, policy), Engine(inventory, policy, index=ScanIndex)
    assert policy.worths.together.any(), "what stands for several devices is scored too"
    books = Books(inventory)
    passes = [engine.scoring_passes]
    for arrival in range(600):
        if arrival == 300:
            passes.append(engine.scoring_passes)
            monkeypatch.setattr(cached, "kernel", kernel)
        demand = random_demand(rng)
        placement = engine.place(demand)
        assert placement == oracle.place(demand)
        if placement is not None:
            books.apply(demand, placement)
        churn(inventory, rng, books)
    assert passes[0] == 0
    assert passes[1] >= 300, "each decision scores what the one before has changed"


def test_the_studys_policy_goes_by_the_requests_that_come() -> None:
    """It keeps a place for two of them, where the fullest device would be filled otherwise."""
    inventory = pool(node("a", 2))
    policy = Fgd()
    engine, books = Engine(inventory, policy), Books(inventory)
    for share in (800, 700):
        placement = engine.place(Demand(share_milli=share))
        assert placement is not None
        books.apply(Demand(share_milli=share), placement)
    fullest, other = (placement.members[0][0].device_uuid for _, placement in books.live)

    def device() -> str:
        placement = engine.place(Demand(share_milli=100))
        assert placement is not None
        return placement.members[0][0].device_uuid

    assert device() == fullest, "nothing is known of the mix yet"
    policy.expect([Demand(share_milli=200)] * 400, inventory)
    assert device() == other, "200 fit beside 700 then, and beside 800 still"


@pytest.mark.parametrize("policy", [BestFit, DotProd])
def test_nodes_that_say_nothing_of_their_cpus_are_compared_by_their_devices(policy: type[Policy]) -> None:
    inventory = pool(node("a", cpu_milli=0), node("b", cpu_milli=0))
    inventory.reserve(SlicePlan("b", "GPU-b-0", 500, GIB))
    placement = Engine(inventory, policy()).place(Demand())
    assert placement is not None
    assert placement.node_ids == ("b",)


def test_dotprod_does_not_look_at_what_is_not_asked_for() -> None:
    inventory = pool(node("a", cpu_milli=8_000), node("b"))
    inventory.reserve(SlicePlan("b", "GPU-b-0", 500, GIB))
    placement = Engine(inventory, DotProd()).place(Demand())
    assert placement is not None
    assert placement.node_ids == ("b",)

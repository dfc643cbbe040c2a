"""Plans of moves: they make room, and they change nothing by being made."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.fragmentation import STEP_ROWS, FragmentationSampler, Mix, measure, typical
from aliquot.coordinator.core.rules.moving import evacuate
from aliquot.coordinator.core.rules.trial import LeaseMove, PlacedLease, hold, let_go
from aliquot.coordinator.core.values.types import Demand
from tests.core.inventories import canonical
from tests.placement.pools import GIB, node, pool


class Pool:
    """Four nodes of four devices with leases wherever they are put."""

    def __init__(self) -> None:
        self.inventory = pool(*(node(f"n{i}", 4) for i in range(4)))
        self.engine = Engine(self.inventory, make_policy("binpack"))
        self.leases: dict[str, PlacedLease] = {}

    def put(self, node_id: str, demand: Demand, *, movable: bool = True) -> None:
        placement = self.engine.place(Demand(share_milli=demand.share_milli, count=demand.count, node_ids=(node_id,)))
        assert placement is not None
        hold(self.inventory, demand, placement)
        lease_id = f"l{len(self.leases)}"
        self.leases[lease_id] = PlacedLease(lease_id, demand, placement, movable)

    def occupants(self) -> dict[str, list[PlacedLease]]:
        by_node: dict[str, list[PlacedLease]] = {}
        for occupant in self.leases.values():
            for node_id in occupant.placement.node_ids:
                by_node.setdefault(node_id, []).append(occupant)
        return by_node

    def carry_out(self, moves: tuple[LeaseMove, ...]) -> None:
        """All new places are held before any old one is given up: agents take their time."""
        for move in moves:
            hold(self.inventory, self.leases[move.lease_id].demand, move.target)
        for move in moves:
            let_go(self.inventory, self.leases[move.lease_id].demand, move.source)
            self.leases[move.lease_id] = self.leases[move.lease_id]._replace(placement=move.target)


def test_the_node_with_fewest_leases_is_emptied() -> None:
    here = Pool()
    for node_id, leases in (("n0", 3), ("n1", 2), ("n2", 1), ("n3", 3)):
        for _ in range(leases):
            here.put(node_id, Demand(share_milli=1000))
    before = canonical(here.inventory)
    plan = evacuate(here.engine, here.occupants(), Demand(count=4), moves_max=4)
    assert canonical(here.inventory) == before
    assert plan is not None
    assert [move.source.node_ids for move in plan.moves] == [("n2",)]
    assert plan.placement.node_ids == ("n2",)
    here.carry_out(plan.moves)
    assert here.engine.place(Demand(count=4)) == plan.placement


def test_leases_that_may_not_move_and_budgets_are_respected() -> None:
    here = Pool()
    for index in range(4):
        here.put(f"n{index}", Demand(share_milli=1000), movable=index == 3)
    plan = evacuate(here.engine, here.occupants(), Demand(count=4), moves_max=4)
    assert plan is not None
    assert plan.placement.node_ids == ("n3",)
    assert evacuate(here.engine, here.occupants(), Demand(count=4), moves_max=0) is None


def test_only_what_is_in_the_way_is_moved() -> None:
    here = Pool()
    for index, shares in enumerate(([1000, 300, 300, 200], [1000, 500, 500], [1000, 1000], [1000, 1000])):
        for share in shares:
            here.put(f"n{index}", Demand(share_milli=share))
    plan = evacuate(here.engine, here.occupants(), Demand(count=3), moves_max=4)
    assert plan is not None
    assert len(plan.moves) == 1, "three devices of a node are wanted, and all but one lease of it may stay"
    here.carry_out(plan.moves)
    assert here.engine.place(Demand(count=3)) == plan.placement


@settings(max_examples=40, deadline=None)
@given(
    leases=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([100, 250, 500, 600, 1000])), max_size=16),
    count=st.integers(1, 4),
    moves_max=st.integers(0, 6),
)
def test_room_is_made_within_the_budget_and_nothing_is_lost(
    leases: list[tuple[int, int]], count: int, moves_max: int
) -> None:
    here = Pool()
    for index, share in leases:
        if here.engine.place(Demand(share_milli=share, node_ids=(f"n{index}",))) is not None:
            here.put(f"n{index}", Demand(share_milli=share))
    before, held = canonical(here.inventory), here.inventory.totals()["default", "A100-80"].share_used_milli
    plan = evacuate(here.engine, here.occupants(), Demand(count=count), moves_max=moves_max)
    assert canonical(here.inventory) == before
    if plan is not None:
        assert len(plan.moves) <= moves_max
        here.carry_out(plan.moves)
        hold(here.inventory, Demand(count=count), plan.placement)
        assert here.inventory.totals()["default", "A100-80"].share_used_milli == held + 1000 * count


def test_a_full_pool_can_not_be_emptied() -> None:
    here = Pool()
    for index in range(4):
        for _ in range(4):
            here.put(f"n{index}", Demand(share_milli=600))
    before = canonical(here.inventory)
    assert evacuate(here.engine, here.occupants(), Demand(count=4), moves_max=99) is None
    assert canonical(here.inventory) == before


def test_without_a_mix_nothing_is_known_to_be_useful() -> None:
    here = Pool()
    here.put("n0", Demand(share_milli=100))
    assert measure(here.inventory, Mix(())) == {}


def test_fragmentation_is_what_the_mix_can_not_use() -> None:
    here = Pool()
    for index in range(4):
        here.put(f"n{index}", Demand(share_milli=600))
    parts = measure(here.inventory, Mix(((Demand(), 1),)))
    assert parts["default", "A100-80"].idle_milli == 13_600
    assert parts["default", "A100-80"].fragmented_milli == 1_600
    assert measure(here.inventory, Mix(((Demand(count=4), 1),)))["default", "A100-80"].ratio == 1.0


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12), st.integers(1, 1000))
def test_typical_types_are_the_fewest_frequent_ones_that_reach_the_share(counts: list[int], milli: int) -> None:
    mix = {Demand(share_milli=number + 1): count for number, count in enumerate(counts)}
    kept = [count for _, count in typical(mix, milli)]
    assert kept == sorted(counts, reverse=True)[: len(kept)]
    needed = sum(counts) * milli
    assert sum(kept) * 1000 >= needed
    assert sum(kept[:-1]) * 1000 < needed, "one fewer is not enough"


def test_fragmentation_is_sampled_in_steps_and_adds_up_to_the_same() -> None:
    inventory = pool(*(node(f"n{i}", 2 + i % 3) for i in range(2 * STEP_ROWS + 7)))
    engine = Engine(inventory, make_policy("binpack"))
    sampler = FragmentationSampler(engine)
    while not sampler.step():
        pass
    assert sampler.latest == {}, "nothing has arrived, so nobody knows what idle capacity is good for"
    for number in range(300):
        demand = Demand(share_milli=600) if number % 2 else Demand(memory_bytes=40 * GIB)
        engine.mix.note(demand)
        placement = engine.place(demand)
        assert placement is not None
        hold(inventory, demand, placement)
    steps = [sampler.step() for _ in range(3)]
    assert steps == [False, False, True]
    mix = Mix(((Demand(share_milli=600), 150), (Demand(share_milli=500), 150)))
    assert sampler.latest == measure(inventory, mix)
    assert sampler.latest["default", "A100-80"].fragmented_milli > 0
    assert not sampler.step()
    inventory.remove_node(f"n{2 * STEP_ROWS + 6}")
    inventory.put_node(node("new", 1))
    while not sampler.step():
        pass
    inventory.set_grantable("new", grantable=True)
    while not sampler.step():
        pass
    assert sampler.latest == measure(inventory, mix)

"""Requests by share or memory as MIG instances: the smallest profile with both, and charged for all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, Reason, make_policy
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, MigCard, MigProfile, NodeSpec
from tests.placement.pools import GIB, Books, assert_sound, pool
from tests.placement.pools import node as undivided

PROFILES = {
    "A100-80": (
        MigProfile("1g.10gb", 1, (0, 1, 2, 3, 4, 5, 6), 9 * GIB, 1),
        MigProfile("1g.20gb", 2, (0, 2, 4, 6), 19 * GIB, 1),
        MigProfile("2g.20gb", 2, (0, 2, 4), 19 * GIB, 2),
        MigProfile("3g.40gb", 4, (0, 4), 39 * GIB, 3),
        MigProfile("4g.40gb", 4, (0,), 39 * GIB, 4),
        MigProfile("7g.80gb", 8, (0,), 79 * GIB, 7),
    ),
    "A30": (
        MigProfile("1g.6gb", 1, (0, 1, 2, 3), 5 * GIB, 1),
        MigProfile("2g.12gb", 2, (0, 2), 11 * GIB, 2),
        MigProfile("4g.24gb", 4, (0,), 23 * GIB, 4),
    ),
}


def compute(model: str, profile: MigProfile) -> int:
    return profile.compute_slices * 1000 // max(each.compute_slices for each in PROFILES[model])


def cut(name: str, *parts: str, model: str = "A100-80", cards: int = 0, **more: object) -> NodeSpec:
    """A node with these MIG instances, and cards that may be cut."""
    by_name = {profile.name: profile for profile in PROFILES[model]}
    devices = tuple(
        DeviceSpec(
            f"MIG-{name}-{number}",
            model,
            by_name[part].memory_bytes,
            mig_profile=part,
            compute_milli=compute(model, by_name[part]),
            best_tier=Tier.MIG,
        )
        for number, part in enumerate(parts)
    )
    offered = tuple(MigCard(f"GPU-{name}-{number}", model, PROFILES[model]) for number in range(cards))
    return NodeSpec(name, name, devices, cards=offered, **more)  # type: ignore[arg-type]


def engine(inventory: Inventory) -> Engine:
    return Engine(inventory, make_policy("binpack"))


def served_by(inventory: Inventory, demand: Demand) -> list[str]:
    return [match.demand.mig_profile for match in engine(inventory).matcher.matches(demand)]


MIG_QUARTER = Demand(share_milli=250, memory_bytes=10 * GIB, models=(("A100-80",),), min_tier=Tier.MIG)


def test_a_quarter_with_ten_gib_is_a_2g_20gb_and_charged_so() -> None:
    inventory = pool(cut("n", "7g.80gb", "1g.10gb", "3g.40gb", "2g.20gb"))
    placement = engine(inventory).place(MIG_QUARTER)
    assert placement is not None
    ((plan,),) = placement.members
    assert inventory.device(plan.device_uuid).mig_profile == "2g.20gb"
    assert (plan.share_milli, plan.memory_bytes) == (285, 19 * GIB)
    assert "served by a 2g.20gb, and charged for all of it: 0.285 of the compute and 19.0Gi" in placement.note


@pytest.mark.parametrize(
    ("share", "memory_gib", "profile"),
    [(142, 0, "1g.10gb"), (143, 0, "2g.20gb"), (0, 10, "1g.20gb"), (100, 20, "3g.40gb"), (500, 1, "4g.40gb")],
)
def test_both_compute_and_memory_decide(share: int, memory_gib: int, profile: str) -> None:
    inventory = pool(cut("n", *(each.name for each in PROFILES["A100-80"])))
    demand = Demand(share_milli=share, memory_bytes=memory_gib * GIB, min_tier=Tier.MIG)
    assert served_by(inventory, demand) == [profile]


def test_no_larger_profile_is_taken_because_it_happens_to_be_free() -> None:
    inventory = pool(cut("n", "2g.20gb", "7g.80gb"))
    books, decides = Books(inventory), engine(inventory)
    first = decides.place(MIG_QUARTER)
    assert first is not None
    books.apply(MIG_QUARTER, first)
    assert decides.place(MIG_QUARTER) is None
    shortfall = decides.explain(MIG_QUARTER)
    assert not shortfall.impossible
    assert {missing.reason for missing in shortfall.missing} == {Reason.UNAVAILABLE, Reason.OTHER_PROFILE}
    assert any("smallest profile with as much, 2g.20gb" in missing.detail for missing in shortfall.missing)


def test_undivided_cards_come_first_unless_the_tier_is_asked_for() -> None:
    quarter = replace(MIG_QUARTER, min_tier=0)
    mixed = pool(cut("mig", "2g.20gb"), undivided("whole", 1))
    placement = engine(mixed).place(quarter)
    assert placement is not None
    assert placement.node_ids == ("whole",)
    assert placement.members[0][0].share_milli == 250
    asked = engine(mixed).place(MIG_QUARTER)
    assert asked is not None
    assert asked.node_ids == ("mig",)
    Books(mixed).apply(Demand(), engine(mixed).place(Demand()) or pytest.fail("a whole card"))
    assert engine(mixed).place(quarter) is None, "it waits for the undivided card"
    only = engine(pool(cut("mig", "2g.20gb"))).place(quarter)
    assert only is not None
    assert only.members[0][0].share_milli == 285


def test_the_pool_and_nodes_of_a_request_decide_what_there_is_for_it() -> None:
    inventory = pool(cut("mig", "3g.40gb", pool="cut"), cut("other", "2g.20gb"), undivided("whole", 1))
    quarter = replace(MIG_QUARTER, min_tier=0)
    assert served_by(inventory, quarter) == []
    assert served_by(inventory, replace(quarter, pool="cut")) == ["3g.40gb"]
    assert served_by(inventory, replace(quarter, node_ids=("other",))) == ["2g.20gb"]


def test_whole_devices_are_never_mig_instances() -> None:
    inventory = pool(cut("n", "7g.80gb"))
    assert engine(inventory).place(Demand(models=(("A100-80",),))) is None
    assert engine(inventory).place(Demand(mig_profile="7g.80gb")) is not None


def test_why_a_request_that_nothing_serves_is_refused() -> None:
    inventory = pool(cut("n", "1g.10gb"))
    shortfall = engine(inventory).explain(MIG_QUARTER)
    assert shortfall.impossible
    assert "a 1g.10gb has no more than 0.142 of the compute and 9.0Gi" in shortfall.summary
    cards = pool(undivided("whole", 2))
    assert "not cut into MIG instances" in engine(cards).explain(MIG_QUARTER).summary


def test_what_a_card_may_be_cut_into_counts() -> None:
    assert served_by(pool(cut("n", "3g.40gb", cards=1)), MIG_QUARTER) == ["2g.20gb"]
    assert served_by(pool(cut("n", "3g.40gb")), MIG_QUARTER) == ["3g.40gb"]


def test_an_instance_knows_better_than_its_driver_said_before() -> None:
    spec = cut("n", "2g.20gb", cards=1)
    small = replace(spec, devices=(replace(spec.devices[0], memory_reserved_bytes=10 * GIB),))
    assert served_by(pool(small), MIG_QUARTER) == ["3g.40gb"]


def parts(model: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([profile.name for profile in PROFILES[model]]), max_size=5)


@st.composite
def pools(draw: st.DrawFn) -> Inventory:
    specs = []
    for number in range(draw(st.integers(1, 4))):
        model = draw(st.sampled_from(sorted(PROFILES)))
        name = f"n{number}"
        if draw(st.integers(0, 3)):
            specs.append(cut(name, *draw(parts(model)), model=model, cards=draw(st.integers(0, 1))))
        else:
            specs.append(undivided(name, draw(st.integers(1, 2)), model=model, memory_gib=24 if model == "A30" else 80))
    return pool(*specs)


demands = st.builds(
    Demand,
    count=st.integers(1, 2),
    share_milli=st.sampled_from([0, 50, 142, 143, 250, 300, 428, 500, 700]),
    memory_bytes=st.sampled_from([GIB, 6 * GIB, 10 * GIB, 20 * GIB, 40 * GIB]),
    models=st.sampled_from([(), (("A100-80",),), (("A30",), ("A100-80",)), (("A30", "A100-80"),)]),
    min_tier=st.sampled_from([0, Tier.PRELOAD, Tier.MIG]),
)


def candidates(inventory: Inventory, demand: Demand, model: str) -> Iterator[tuple[int, int, str]]:
    """Every profile of a model that is there, or may be made, and is large enough: in the plainest way."""
    for node_id in inventory.node_ids():
        record = inventory.node(node_id)
        there = [device.spec for device in record.devices if device.spec.mig_profile and device.spec.model == model]
        for profile in PROFILES[model]:
            instances = sum(spec.mig_profile == profile.name for spec in there)
            may_be_cut = any(card.model == model for card in record.spec.cards)
            size = compute(model, profile), profile.memory_bytes
            enough = size[0] >= demand.share_milli and size[1] >= demand.memory_bytes
            if enough and (instances >= demand.count or may_be_cut):
                yield (*size, profile.name)


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=200, deadline=None)
@given(inventory=pools(), asked=st.lists(demands, min_size=1, max_size=8))
def test_any_pool_and_any_requests(inventory: Inventory, asked: list[Demand]) -> None:
    decides, books = engine(inventory), Books(inventory)
    for demand in asked:
        placement = decides.place(demand)
        if placement is None:
            continue
        for plan in placement.members[0]:
            device = inventory.device_record(plan.device_uuid)
            spec = device.spec
            assert plan.memory_bytes >= demand.memory_bytes
            if not spec.mig_profile:
                assert demand.min_tier < Tier.MIG
                continue
            assert (plan.share_milli, plan.memory_bytes) == (spec.compute_milli, spec.leasable_bytes)
            assert plan.share_milli >= demand.share_milli
            smallest = min(candidates(inventory, demand, spec.model))
            assert (plan.share_milli, plan.memory_bytes, spec.mig_profile) == smallest
            if demand.min_tier < Tier.MIG:
                for node_id in inventory.node_ids():
                    suit = [each for each in inventory.node(node_id).spec.devices if _could(each, demand)]
                    assert len(suit) < demand.count, "an undivided card would have done"
        assert decides.explain(demand).impossible is False
        books.apply(demand, placement)
        assert_sound(inventory)
    for totals in inventory.totals().values():
        assert totals.share_used_milli <= totals.share_capacity_milli
    while books.live:
        books.undo(0)
    assert_sound(inventory)
    assert not any(totals.share_used_milli or totals.memory_used_bytes for totals in inventory.totals().values())


def _could(spec: DeviceSpec, demand: Demand) -> bool:
    if spec.mig_profile:
        return False
    models = {model for alternative in demand.models for model in alternative}
    share = demand.share_milli or -(-demand.memory_bytes * 1000 // spec.leasable_bytes)
    return (not models or spec.model in models) and share <= 1000 and demand.memory_bytes <= spec.leasable_bytes

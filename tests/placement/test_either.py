"""Requests for which a MIG instance will do as well as a part of an undivided card: one choice, made by the policy."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, Reason, machine_code, make_policy
from aliquot.coordinator.core.placement.index import ScoreIndex
from aliquot.coordinator.core.placement.mix import class_totals, mix_type
from aliquot.coordinator.core.placement.survey import survey
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec, Placement
from aliquot.coordinator.upkeep.price_programme import learn_prices
from bench.lib.scanning import ScanIndex
from tests.placement.pools import GIB, Books, assert_sound, pool
from tests.placement.pools import node as undivided
from tests.placement.test_matching import PROFILES, cut

EIGHTH = Demand(share_milli=125, memory_bytes=8 * GIB, or_mig=True)
SMALL = Demand(share_milli=1000, mig_profile="1g.10gb")
CPU_UNKNOWN = -1


def engine(inventory: Inventory, policy: str = "binpack", *, full_scan: bool = False) -> Engine:
    return Engine(inventory, make_policy(policy), index=ScanIndex if full_scan else ScoreIndex)


def placed(decides: Engine, books: Books, demand: Demand) -> Placement | None:
    placement = decides.place(demand)
    if placement is not None:
        books.apply(demand, placement)
        assert_sound(books.inventory)
    return placement


def on(inventory: Inventory, placement: Placement | None) -> list[str]:
    """Of each slice: the profile of its device; empty for an undivided one."""
    assert placement is not None
    return [inventory.device(plan.device_uuid).mig_profile for plans in placement.members for plan in plans]


def test_what_is_full_of_the_one_is_served_by_the_other_and_charged_what_it_holds() -> None:
    inventory = pool(cut("mig", "1g.10gb", "3g.40gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    got = [placed(decides, books, EIGHTH) for _ in range(10)]
    assert Counter(profile for placement in got[:9] for profile in on(inventory, placement)) == {"": 8, "1g.10gb": 1}
    assert got[9] is None, "the larger instance is not for it"
    for placement in filter(None, got):
        ((plan,),) = placement.members
        if inventory.device(plan.device_uuid).mig_profile:
            assert (plan.share_milli, plan.memory_bytes) == (142, 9 * GIB)
            assert "served by a 1g.10gb, and charged for all of it: 0.142 of the compute and 9.0Gi" in placement.note
        else:
            assert (plan.share_milli, plan.memory_bytes) == (125, 8 * GIB)
            assert not placement.note


def test_who_does_not_say_so_is_served_as_before() -> None:
    inventory = pool(cut("mig", "1g.10gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    placed(decides, books, Demand())
    assert decides.place(replace(EIGHTH, or_mig=False)) is None
    assert on(inventory, decides.place(EIGHTH)) == ["1g.10gb"]


def test_where_the_tier_mig_is_asked_for_only_instances_serve() -> None:
    inventory = pool(cut("mig", "1g.10gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    asked = replace(EIGHTH, min_tier=Tier.MIG)
    assert on(inventory, placed(decides, books, asked)) == ["1g.10gb"]
    assert decides.place(asked) is None


def test_the_smallest_instances_of_each_model_are_weighed_at_once() -> None:
    inventory = pool(
        cut("a100", "2g.20gb", "1g.10gb"), cut("a30", "4g.24gb", "2g.12gb", model="A30"), undivided("whole", 1)
    )
    books, decides = Books(inventory), engine(inventory)
    placed(decides, books, Demand())
    profiles = {on(inventory, placed(decides, books, EIGHTH))[0] for _ in range(2)}
    assert profiles == {"1g.10gb", "2g.12gb"}
    assert decides.place(EIGHTH) is None


@pytest.mark.parametrize(
    ("models", "first"), [((("A100-80",), ("A30",)), "1g.10gb"), ((("A30",), ("A100-80",)), "2g.12gb")]
)
def test_an_order_of_models_comes_first(models: tuple[tuple[str, ...], ...], first: str) -> None:
    inventory = pool(cut("a100", "1g.10gb"), cut("a30", "2g.12gb", model="A30"))
    books, decides = Books(inventory), engine(inventory)
    demand = replace(EIGHTH, models=models)
    assert on(inventory, placed(decides, books, demand)) == [first]
    second = placed(decides, books, demand)
    assert second is not None
    assert "model alternative 2 of 2" in second.note
    assert "and charged for all of it" in second.note


def test_members_of_a_gang_are_served_either_way_and_the_note_says_how_many() -> None:
    inventory = pool(cut("mig", "1g.10gb", "1g.10gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    placed(decides, books, Demand(share_milli=700))
    gang = replace(EIGHTH, gang_size=4)
    assert decides.fits(gang)
    placement = placed(decides, books, gang)
    assert Counter(on(inventory, placement)) == {"": 2, "1g.10gb": 2}
    assert placement is not None
    assert "2 of 4 members served by a 1g.10gb, and charged for all of it" in placement.note
    assert not decides.fits(replace(gang, gang_size=1))


@pytest.mark.parametrize("cards", [0, 1])
def test_a_gang_gets_the_smallest_instances_that_are_enough_for_all_of_it(cards: int) -> None:
    """One of a smaller profile takes nothing away from it, whether or not undivided cards are full of others."""
    instances = cut("n", "1g.10gb", "1g.20gb", "1g.20gb", "1g.20gb")
    inventory = pool(instances, *([undivided("whole", cards)] if cards else []))
    books, decides = Books(inventory), engine(inventory)
    if cards:
        placed(decides, books, Demand())
    gang = Demand(gang_size=3, apart=False, share_milli=0, memory_bytes=GIB, or_mig=True)
    assert on(inventory, placed(decides, books, gang)) == ["1g.20gb"] * 3


def test_slices_of_one_member_are_alike() -> None:
    inventory = pool(replace(cut("n", "1g.10gb"), devices=(*cut("n", "1g.10gb").devices, *undivided("n", 1).devices)))
    assert engine(inventory).place(replace(EIGHTH, count=2)) is None
    assert engine(inventory).place(EIGHTH) is not None


def test_what_stands_against_it_is_said_of_each_kind() -> None:
    inventory = pool(cut("mig", "1g.10gb", "2g.20gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    fits = survey(decides, EIGHTH, ["mig", "whole"])
    assert [(fit.reason, fit.members) for fit in fits] == [(Reason.FITS, 1), (Reason.FITS, 8)]
    for demand in (Demand(), SMALL):
        placed(decides, books, demand)
    shortfall = decides.explain(EIGHTH)
    assert not shortfall.impossible
    assert {missing.reason for missing in shortfall.missing} == {Reason.UNAVAILABLE, Reason.OTHER_PROFILE}
    assert all(fit.reason is not Reason.FITS for fit in survey(decides, EIGHTH, ["mig", "whole"]))
    assert not decides.explain(replace(EIGHTH, share_milli=0, memory_bytes=70 * GIB)).impossible
    assert decides.explain(replace(EIGHTH, share_milli=0, memory_bytes=90 * GIB)).impossible


def test_who_is_refused_for_want_of_an_undivided_card_is_told_of_the_choice() -> None:
    inventory = pool(cut("mig", "1g.10gb", "2g.20gb"), undivided("whole", 1))
    books, decides = Books(inventory), engine(inventory)
    placed(decides, books, Demand())
    missing = decides.explain(replace(EIGHTH, or_mig=False)).missing
    changes = {each.smallest_change for each in missing if each.reason == Reason.OTHER_PROFILE}
    assert changes == {"ask with or_mig, or for 1g.10gb", "ask for 2g.20gb"}


# -- the prices


def half_and_half() -> Inventory:
    """56 of the smallest instances, and eight undivided cards."""
    specs = []
    for number in range(4):
        specs.append(cut(f"m{number}", *["1g.10gb"] * 14, cpu_milli=CPU_UNKNOWN))
        specs.append(undivided(f"w{number}", 2, cpu_milli=CPU_UNKNOWN))
    return pool(*specs)


def served(demand: Demand, named: int, others: int) -> tuple[Counter[tuple[str, str]], int]:
    """((who, profile that served it) -> how many; what is allocated, in thousandths) of so many of two kinds that
    arrive in random order, at prices that are learnt from them.
    """
    inventory = half_and_half()
    books, decides = Books(inventory), engine(inventory, "price")
    requests = [SMALL] * named + [demand] * others
    random.Random(42).shuffle(requests)
    types = {mix_type(SMALL): named, mix_type(demand): others}
    found: Counter[tuple[str, str]] = Counter()
    for number, request in enumerate(requests):
        if number % 6 == 0:
            table = learn_prices(types, number + 1, class_totals(inventory))
            assert table is not None
            decides.set_prices(table)
        placement = decides.place(request)
        if placement is not None:
            books.apply(request, placement)
            (profile,) = on(inventory, placement)
            found["named" if request.mig_profile else "either", profile] += 1
    totals = inventory.totals().values()
    allocated = (
        sum(each.share_used_milli for each in totals) * 1000 // sum(each.share_capacity_milli for each in totals)
    )
    return found, allocated


@pytest.mark.parametrize("memory_gib", [0, 8])
def test_instances_go_to_those_who_need_them_while_these_are_many(memory_gib: int) -> None:
    found, _ = served(replace(EIGHTH, memory_bytes=memory_gib * GIB), named=80, others=50)
    assert found == {("named", "1g.10gb"): 56, ("either", ""): 50}


@pytest.mark.parametrize("memory_gib", [0, 8])
def test_instances_that_nobody_needs_serve_the_others(memory_gib: int) -> None:
    demand = replace(EIGHTH, memory_bytes=memory_gib * GIB)
    found, allocated = served(demand, named=40, others=80)
    without, allocated_without = served(replace(demand, or_mig=False), named=40, others=80)
    assert without == {("named", "1g.10gb"): 40, ("either", ""): 64}
    assert found["named", "1g.10gb"] >= 39, "what others may take is kept for those who can have nothing else"
    assert found["either", ""] + found["either", "1g.10gb"] == 80
    assert allocated_without == 857
    assert allocated >= 990


def test_an_instance_is_sold_once() -> None:
    """However little of a card it is, and whether anybody states memory or not."""
    inventory = pool(cut("m", *["1g.10gb"] * 7), undivided("w", 1))
    mix = {mix_type(SMALL): 50, mix_type(Demand(share_milli=142)): 10}
    table = learn_prices(mix, 1, class_totals(inventory))
    assert table is not None
    of = {each.sort.mig_profile: each.worths[0] for each in table.sorts}
    assert of["1g.10gb"] > of[""], "seven instances are short, of 142 thousandths there is plenty"


# -- whatever the pool


def nodes() -> st.SearchStrategy[list[NodeSpec]]:
    sorts = st.one_of(
        st.tuples(st.just("A100-80"), st.lists(st.sampled_from(PROFILES["A100-80"]), max_size=4)),
        st.tuples(st.just("A30"), st.lists(st.sampled_from(PROFILES["A30"]), max_size=4)),
    )
    return st.lists(st.tuples(sorts, st.integers(0, 2)), min_size=1, max_size=4).map(
        lambda drawn: [
            _node(f"n{number}", model, [profile.name for profile in profiles], cards)
            for number, ((model, profiles), cards) in enumerate(drawn)
        ]
    )


def _node(name: str, model: str, profiles: list[str], cards: int) -> NodeSpec:
    """Instances and undivided cards of one model."""
    spec = cut(name, *profiles, model=model)
    memory_gib = 24 if model == "A30" else 80
    whole = tuple(DeviceSpec(f"GPU-{name}-{i}", model, memory_gib * GIB, index=i) for i in range(cards))
    instances = tuple(replace(each, parent_uuid=f"GPU-{name}-cut-{i % 2}") for i, each in enumerate(spec.devices))
    return replace(spec, devices=(*instances, *whole))


DEMANDS = st.builds(
    Demand,
    count=st.integers(1, 2),
    gang_size=st.sampled_from([1, 1, 1, 3]),
    apart=st.booleans(),
    share_milli=st.sampled_from([0, 50, 142, 250, 500]),
    memory_bytes=st.sampled_from([GIB, 6 * GIB, 10 * GIB, 20 * GIB]),
    models=st.sampled_from([(), (("A100-80",),), (("A30",), ("A100-80",))]),
    min_tier=st.sampled_from([0, 0, Tier.MIG]),
    or_mig=st.booleans(),
)
NAMED = st.sampled_from([SMALL, Demand(), Demand(mig_profile="2g.12gb")])


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=60, deadline=None)
@given(specs=nodes(), asked=st.lists(st.one_of(DEMANDS, DEMANDS, NAMED), min_size=1, max_size=10), data=st.data())
@pytest.mark.parametrize("policy", ["price", "binpack"])
def test_any_pool_and_any_requests(
    policy: str, specs: list[NodeSpec], asked: list[Demand], data: st.DataObject
) -> None:
    """Cached scores decide as a full scan does; what is held is what the device's kind says; nothing that fits is
    refused; and a part that either may serve waits for nothing that anybody else would get.
    """
    machine_code.warm_up()
    inventory = pool(*specs)
    decides, oracle = engine(inventory, policy), engine(inventory, policy, full_scan=True)
    table = learn_prices({mix_type(EIGHTH): 3, mix_type(SMALL): 2, mix_type(Demand()): 1}, 1, class_totals(inventory))
    if table is not None:
        decides.set_prices(table)
        oracle.set_prices(table)
    books = Books(inventory)
    for demand in asked:
        placement = decides.place(demand)
        assert placement == oracle.place(demand)
        assert (placement is not None) == decides.fits(demand)
        if placement is None:
            exact = replace(demand, or_mig=False)
            assert not demand.or_mig or not (decides.fits(exact) or decides.fits(replace(exact, min_tier=Tier.MIG)))
            continue
        if demand.apart and demand.count == 1:
            cards = [inventory.device_record(plans[0].device_uuid).spec.card for plans in placement.members]
            assert len(set(cards)) == len(cards)
        for plans in placement.members:
            assert len({inventory.device_record(plan.device_uuid).class_id for plan in plans}) == 1
            for plan in plans:
                spec = inventory.device(plan.device_uuid)
                if spec.mig_profile:
                    assert (plan.share_milli, plan.memory_bytes) == (spec.compute_milli, spec.leasable_bytes)
                    assert demand.mig_profile or spec.mig_profile in placement.note
                    assert plan.share_milli >= demand.share_milli or demand.mig_profile
                else:
                    assert demand.share_milli in (0, plan.share_milli)
                assert plan.memory_bytes >= demand.memory_bytes
        books.apply(demand, placement)
        assert_sound(inventory)
        if data.draw(st.booleans(), "one leaves"):
            books.undo(0)

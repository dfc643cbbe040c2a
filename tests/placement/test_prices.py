"""Prices follow from the mix, are integers, and are learnt away from the writer."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.coordinator.core.inventory.records import CPU_UNLIMITED, DeviceClass
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.mix import ArrivalMix, ClassTotals, MixSummary
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.prices import PriceTable, linear_prices
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.placement.worth import GRAINS, like, together_on, worth_on
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.upkeep import price_learner
from aliquot.coordinator.upkeep.price_learner import Lesson, PriceLearner
from aliquot.coordinator.upkeep.price_programme import learn_prices, lesson_of
from aliquot.coordinator.upkeep.price_sorts import unseen
from bench.lib.teaching import teach
from tests.placement.pools import GIB, node, pool

WHOLE = 1_000_000


DEVICE = DeviceClass("nvidia", "A100-80", 80 * GIB, "")

IDLE = [ClassTotals(DEVICE, 80, 80_000, ((8, 96_000, 10),), ((8, 96_000, 10),))]
"""Ten empty nodes."""


def learn(mix: Mapping[Demand, int], classes: Sequence[ClassTotals] = IDLE) -> PriceTable:
    table = learn_prices(mix, 1, classes)
    assert table is not None
    return table


def worths(table: PriceTable) -> Ints:
    """[share left, λ] where memory does not matter."""
    return worth_on(table, DEVICE)[:, -1]


def worth(table: PriceTable, left: int, cpu_price: int = 0) -> int:
    return int(worths(table)[left, cpu_price])


def test_a_remainder_that_nothing_fits_is_worth_nothing() -> None:
    table = learn({Demand(share_milli=810): 9, Demand(share_milli=470): 9, Demand(): 9})
    assert worth(table, 190) == 0
    assert worth(table, 1000) == WHOLE
    assert worth(table, 470) == WHOLE // 2, "two of them fill a device"
    assert worth(table, 530) == WHOLE // 2


def test_what_is_scarce_has_no_price_where_room_for_it_abounds() -> None:
    table = learn({Demand(share_milli=810): 90, Demand(share_milli=160): 1})
    assert worth(table, 190) == 0, "the remainders of 810 are more than all requests for 160 could use"


def test_worth_falls_with_the_price_of_cpu() -> None:
    table = learn({Demand(cpu_milli=12_000): 5, Demand(cpu_milli=3_000): 5})
    assert list(table.cpu_prices) == sorted(set(table.cpu_prices))
    values = worths(table)[1000].tolist()
    assert values == sorted(values, reverse=True)
    assert values[0] == WHOLE


def test_a_remainder_is_worth_what_share_and_memory_can_be_sold_together() -> None:
    """What a thin request with much memory leaves is for thick ones with little, and the other way round."""
    large, fast = Demand(share_milli=250, memory_bytes=60 * GIB), Demand(share_milli=750, memory_bytes=20 * GIB)
    table = learn({large: 1, fast: 1})
    value = worth_on(table, DEVICE)[:, :, 0]
    whole, quarter, rest = GRAINS, GRAINS // 4, GRAINS * 3 // 4
    assert value[whole, whole] == value[rest, quarter] + value[quarter, rest]
    assert value[quarter, quarter] == 0, "neither fits"
    assert min(value[rest, quarter], value[quarter, rest]) > 0


def test_large_memory_is_kept_for_those_who_ask_for_it() -> None:
    """Small requests go to small cards, whatever fits better on the large ones, and large ones are all let in."""
    small, large = Demand(share_milli=250, memory_bytes=3 * GIB), Demand(share_milli=500, memory_bytes=39 * GIB)
    inventory = pool(
        *(node(f"a{i}", 4, model="A100-80") for i in range(2)),
        *(node(f"t{i}", 4, model="T4", memory_gib=16) for i in range(2)),
    )
    policy = Price()
    engine = Engine(inventory, policy)
    teach(policy, Counter({small: 200, large: 100}), inventory)
    for _ in range(32):
        placement = engine.place(small)
        assert placement is not None
        assert placement.node_ids[0].startswith("t")
        hold(inventory, small, placement)
    for _ in range(16):
        placement = engine.place(large)
        assert placement is not None
        hold(inventory, large, placement)


def test_classes_that_run_out_are_dearer() -> None:
    """What only one class of card can serve makes its idle devices worth more, the fewer there are."""
    scarce = DeviceClass("nvidia", "H100", 80 * GIB, "")
    mix = {Demand(models=(("H100",),)): 1, Demand(): 1}
    told = [
        learn(mix, [ClassTotals(DEVICE, 100, 100_000), ClassTotals(scarce, 100, idle)]) for idle in (100_000, 10_000)
    ]
    rich, poor = (worth_on(table, scarce)[-1, -1, 0] for table in told)
    assert poor > rich


def test_tables_of_journals_before_classes_are_read() -> None:
    """They say themselves what remainders are worth, the same on all devices."""
    steps = [[[470, 500_000], [1000, 1_000_000]]]
    raw = msgspec.msgpack.encode({"version": 7, "cpu_prices": [0], "steps": steps, "groups": [[8, 64_000, 400_000]]})
    table = msgspec.msgpack.decode(raw, type=PriceTable)
    assert [worth(table, left) for left in (469, 470, 999, 1000)] == [0, 500_000, 500_000, 1_000_000]


def test_a_mix_without_devices_teaches_nothing() -> None:
    assert learn_prices({Demand(count=0, cpu_milli=1000): 10}, 1, IDLE) is None
    assert learn_prices({}, 1, IDLE) is None
    assert learn_prices({Demand(): 10}, 1, ()) is None, "no device, no price"


def test_places_for_several_devices_have_a_price_of_their_own_where_nodes_for_them_are_short() -> None:
    """Eight free devices of one node are worth more than eight elsewhere, if eight together are what is wanted."""
    large, small = Demand(count=8, cpu_milli=64_000), Demand(cpu_milli=4_000)
    inventory = pool(*(node(f"w{i}") for i in range(4)), *(node(f"n{i}", 2, model="T4") for i in range(16)))
    policy = Price()
    engine = Engine(inventory, policy)
    teach(policy, Counter({large: 4, small: 32}), inventory)
    for _ in range(32):
        placement = engine.place(small)
        assert placement is not None
        assert placement.node_ids[0].startswith("n"), "the wide nodes stay whole"
        hold(inventory, small, placement)
    for _ in range(4):
        placement = engine.place(large)
        assert placement is not None
        hold(inventory, large, placement)


def test_nodes_with_much_cpu_are_kept_for_places_that_need_it() -> None:
    heavy, light = Demand(count=8, cpu_milli=120_000), Demand(count=8, cpu_milli=64_000)
    inventory = pool(
        *(node(f"b{i}", cpu_milli=128_000) for i in range(2)), *(node(f"s{i}", cpu_milli=96_000) for i in range(6))
    )
    policy = Price()
    engine = Engine(inventory, policy)
    teach(policy, Counter({heavy: 25, light: 75}), inventory)
    for _ in range(6):
        placement = engine.place(light)
        assert placement is not None
        assert placement.node_ids[0].startswith("s")
        hold(inventory, light, placement)
    assert engine.place(heavy) is not None


def test_nodes_with_much_cpu_are_kept_before_anybody_has_asked_for_them() -> None:
    """Until the first prices by an order among equals, and then because each kind of node counts as asked for once."""
    heavy, light = Demand(count=8, cpu_milli=120_000), Demand(count=8, cpu_milli=64_000)
    for lesson in (None, Counter({light: 10})):
        inventory = pool(node("b", cpu_milli=128_000), *(node(f"s{i}", cpu_milli=96_000) for i in range(6)))
        policy = Price()
        engine = Engine(inventory, policy)
        if lesson is not None:
            teach(policy, lesson, inventory)
        for _ in range(6):
            placement = engine.place(light)
            assert placement is not None
            assert placement.node_ids[0].startswith("s")
            hold(inventory, light, placement)
        assert engine.place(heavy) is not None


def test_kinds_of_nodes_are_few_however_their_cpu_differs() -> None:
    """What the system takes of a node's CPU differs from node to node; nodes that report none are a kind, too."""
    nodes = (*((8, 96_000 - 1000 * number, 1) for number in range(20)), (8, 127_000, 2), (2, CPU_UNLIMITED, 1))
    assert unseen([ClassTotals(DEVICE, 162, 162_000, (), nodes), ClassTotals(DEVICE, 3, 3_000)]) == [
        Demand(count=2),
        Demand(count=8, cpu_milli=77_000),
        Demand(count=8, cpu_milli=96_000),
    ]


def test_where_any_gap_is_filled_places_for_several_are_worth_no_more_than_their_devices() -> None:
    table = learn({Demand(count=8, cpu_milli=64_000): 1, Demand(share_milli=500): 100})
    assert {each.sort.count for each in table.together} == {8}
    assert not together_on(table, [DEVICE], 8)[0][:, :, 0].any()


def test_what_a_lesson_brings_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy asks for classes alike as the process that learns does, and for classes without devices as well."""
    inventory = pool(node("a", 2), node("b", 2, memory_gib=81), node("gone", 2, model="H100"))
    inventory.remove_node("gone")
    third = tuple(replace(device, memory_reserved_bytes=GIB // 3) for device in node("c", 2).devices)
    inventory.put_node(replace(node("c", 2), devices=third))
    mix = ArrivalMix()
    for _ in range(9):
        mix.note(Demand(share_milli=500, memory_bytes=30 * GIB))
    policy = Price()
    policy.learn_classes(inventory)
    classes = [like(each) for each in inventory.classes]
    assert len(set(classes)) == 3 < len(classes)
    lesson = lesson_of(mix.summary(inventory), 1)
    assert lesson is not None

    def fail(*_: object) -> None:
        raise AssertionError("a table is worked out in the process that decides")

    table = msgspec.msgpack.decode(msgspec.msgpack.encode(lesson), type=Lesson).take_in()
    monkeypatch.setattr("aliquot.coordinator.core.placement.worth._from_sorts", fail)
    policy.set_prices(table)


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.builds(
            Demand,
            share_milli=st.integers(1, 1000),
            cpu_milli=st.integers(0, 128_000),
            count=st.integers(0, 8),
        ),
        st.integers(1, 1000),
        max_size=100,
    )
)
def test_tables_are_monotone_integers_whatever_arrives(mix: dict[Demand, int]) -> None:
    table = learn_prices(mix, 3, IDLE)
    if table is None:
        assert not any(demand.count for demand in mix)
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=PriceTable) == table
    values = worths(table)
    assert (values[1:] >= values[:-1]).all()
    assert values[0].max() == 0
    assert values.max() <= WHOLE * 1.001
    assert len(table.cpu_prices) <= 16


def test_the_mix_forgets_and_stays_bounded() -> None:
    mix = ArrivalMix()
    for number in range(40_000):
        mix.note(Demand(share_milli=1 + number % 7 if number < 20_000 else 500))
    summary = mix.summary(pool(node("a")))
    assert summary.noted == 40_000
    assert sum(count for _, count in summary.types) <= 16_384
    assert summary.types[0][0] == Demand(share_milli=500)
    for number in range(5000):
        mix.note(Demand(memory_bytes=1 + number))
    assert len(mix.summary(pool(node("a"))).types) <= 1025


async def test_the_learner_submits_a_table_when_enough_has_arrived() -> None:
    engine = Engine(pool(node("a")), Price())
    tables: list[PriceTable] = []

    async def submit(table: PriceTable) -> None:
        tables.append(table)
        engine.set_prices(table)

    def summarise() -> MixSummary:
        return engine.mix.summary(engine.inventory)

    learner = PriceLearner(summarise, submit, arrivals_min=10)
    engine.mix.note(Demand(share_milli=810))
    assert not await learner.learn_once()
    for _ in range(10):
        engine.mix.note(Demand(share_milli=470))
    assert await learner.learn_once()
    assert not await learner.learn_once(), "nothing new has arrived"
    assert [table.version for table in tables] == [1]
    assert worth(tables[0], 470) == WHOLE // 2
    assert engine.place(Demand(share_milli=470)) is not None


async def test_first_prices_come_early_and_the_next_as_arrivals_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not after a restart: then prices are known, and ten arrivals say less than they do."""

    async def in_line(summary: bytes, version: int) -> Lesson | None:
        return lesson_of(msgspec.msgpack.decode(summary, type=MixSummary), version)

    monkeypatch.setattr(price_learner, "run_lesson", in_line)

    async def lessons(version: int) -> list[int]:
        engine = Engine(pool(node("a")), Price())
        taught: list[int] = []

        async def submit(table: PriceTable) -> None:
            taught.append(engine.mix.noted)

        learner = PriceLearner(lambda: engine.mix.summary(engine.inventory), submit, version=version, arrivals_min=25)
        for _ in range(90):
            engine.mix.note(Demand(share_milli=470))
            await learner.learn_once()
        return taught

    assert await lessons(0) == [10, 20, 40, 65, 90]
    assert await lessons(7) == [25, 50, 75]


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python"])
async def test_a_lesson_that_fails_leaves_the_old_prices_in_force(
    python: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def submit(table: PriceTable) -> None:
        raise AssertionError(f"nothing can have been learnt, and yet there is {table}")

    monkeypatch.setattr(sys, "executable", python)
    learner = PriceLearner(lambda: MixSummary(1_000, ((Demand(), 1_000),), ()), submit)
    assert not await learner.learn_once()
    assert "prices were not learnt" in caplog.text


def test_before_anything_arrived_a_remainder_is_worth_its_size() -> None:
    assert worth(linear_prices(), 250) == WHOLE // 4


def test_of_models_that_will_do_alike_the_one_is_taken_whose_rest_is_worth_less() -> None:
    """`A100|T4` weighs both; `A100>T4` is an order, and the second is taken where the first has no place."""
    large, either = Demand(share_milli=500, memory_bytes=39 * GIB), (("A100-80", "T4"),)
    part = Demand(share_milli=500, memory_bytes=7 * GIB)
    inventory = pool(node("a", 2), node("t", 2, model="T4", memory_gib=16))
    policy = Price()
    engine = Engine(inventory, policy)
    teach(policy, Counter({large: 1, part: 1}), inventory)

    def nodes_of(demand: Demand) -> list[str]:
        found = []
        for _ in range(6):
            placement = engine.place(demand)
            assert placement is not None
            hold(inventory, demand, placement)
            found.append((placement.node_ids[0], placement.note))
        return [f"{node_id} {note}".strip() for node_id, note in found]

    assert nodes_of(replace(part, models=either)) == ["t"] * 4 + ["a"] * 2
    inventory = pool(node("a", 2), node("t", 2, model="T4", memory_gib=16))
    engine = Engine(inventory, policy)
    assert (
        nodes_of(replace(part, models=(("A100-80",), ("T4",)))) == ["a"] * 4 + ["t model alternative 2 of 2 (T4)"] * 2
    )


@settings(max_examples=60, deadline=None)
@given(st.permutations(["amd", "npu", "nvidia"]), st.integers(2, 3), st.lists(st.integers(0, 2), max_size=9), st.data())
def test_what_is_preferred_and_has_a_place_is_what_is_got(
    order: list[str], named: int, taken: list[int], data: st.DataObject
) -> None:
    """Of all alternatives, vendors before models, the first that fits by itself; none if none does."""
    cards = {"amd": "MI300X", "npu": "910B4", "nvidia": "A100-80"}
    specs = [node(vendor, 3, model=model) for vendor, model in cards.items()]
    inventory = pool(*(replace(s, devices=tuple(replace(d, vendor=s.node_id) for d in s.devices)) for s in specs))
    engine = Engine(inventory, Price())
    for number in taken:
        filler = Demand(vendor=sorted(cards)[number])
        placement = engine.place(filler)
        if placement is not None:
            hold(inventory, filler, placement)
    levels = data.draw(st.sampled_from([(), (tuple(sorted(cards.values())),), (("910B4",), ("A100-80", "MI300X"))]))
    demand = Demand(vendors=tuple(order[:named]), models=levels)
    alone = [Demand(vendor=v, models=(m,) if m else ()) for v in demand.vendors for m in levels or ((),)]
    wanted = next((found for each in alone if (found := engine.place(each)) is not None), None)
    got = engine.place(demand)
    assert (got is None) == (wanted is None)
    assert engine.fits(demand) == (wanted is not None)
    if got is not None and wanted is not None:
        assert got.members == wanted.members

"""Whether a slice fits a device has one answer: of the record, of the arrays, of the engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.picking import slice_on
from aliquot.coordinator.core.placement.room import slots_per_device
from aliquot.coordinator.core.placement.shapes import ShapeTable, shape_of
from aliquot.coordinator.core.values.types import UNKNOWN, Demand, DeviceSpec, NodeSpec, SlicePlan
from tests.placement.pools import GIB

SORTS = st.sampled_from(
    [
        ("A100-80", "nvidia", 80, "", 1000),
        ("A100-80", "nvidia", 10, "1g.10gb", 142),
        ("A100-80", "nvidia", 20, "2g.20gb", 285),
        ("MI300", "amd", 192, "", 1000),
        ("T4", "nvidia", 16, "", 1000),
        ("broken", "nvidia", 0, "", 1000),
    ]
)
DEVICES = st.lists(
    st.tuples(
        SORTS,
        st.sampled_from([UNKNOWN, 0, 2, 4, 5]),
        st.sampled_from([0, 0, 1, GIB // 4, 9 * GIB]),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([0, 0, 100, 142, 500]),
        st.sampled_from(["", "", "", "somebody"]),
    ),
    min_size=1,
    max_size=6,
)
SHAPES = st.builds(
    Demand,
    share_milli=st.sampled_from([0, 1, 100, 142, 250, 500, 1000]),
    memory_bytes=st.sampled_from([0, 0, 1, GIB, 9 * GIB, 10 * GIB, 75 * GIB]),
    models=st.sampled_from([(), (("A100-80",),), (("T4", "MI300"),)]),
    vendor=st.sampled_from(["", "", "nvidia", "amd"]),
    mig_profile=st.sampled_from(["", "", "1g.10gb", "2g.20gb"]),
    min_tier=st.sampled_from([0, 0, 2, 4]),
    instances=st.sampled_from([(), (("A100-80", "1g.10gb"),), (("A100-80", "2g.20gb"), ("T4", "1g.10gb"))]),
)


def one_node(devices: list[tuple[tuple[str, str, int, str, int], int, int, bool, int, str]]) -> Inventory:
    specs = tuple(
        DeviceSpec(
            f"GPU-{index}",
            model,
            gib * GIB,
            vendor=vendor,
            index=index,
            mig_profile=profile,
            compute_milli=compute,
            best_tier=tier,
        )
        for index, ((model, vendor, gib, profile, compute), tier, *_) in enumerate(devices)
    )
    inventory = Inventory()
    inventory.put_node(NodeSpec("n", "n", specs, best_tier=3))
    inventory.set_grantable("n", grantable=True)
    for spec, (_, _, foreign, healthy, held, owner) in zip(specs, devices, strict=True):
        inventory.set_device(spec.uuid, foreign_bytes=foreign, healthy=healthy)
        if held and spec.leasable_bytes:
            whole = bool(spec.mig_profile)
            share = spec.compute_milli if whole else held
            inventory.reserve(SlicePlan("n", spec.uuid, share, spec.leasable_bytes if whole else GIB))
        inventory.withhold(spec.uuid, owner)
    return inventory


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=400, deadline=None)
@given(devices=DEVICES, demand=SHAPES)
def test_the_record_the_arrays_and_the_engine_say_the_same(
    devices: list[tuple[tuple[str, str, int, str, int], int, int, bool, int, str]], demand: Demand
) -> None:
    inventory = one_node(devices)
    shape = shape_of(demand, demand.models[0] if demand.models else ())
    shapes = ShapeTable(inventory)
    shapes.put(0, shape)
    slots, rows = slots_per_device(inventory, shapes, 0), shapes.eligible_rows(0)
    engine = Engine(inventory, make_policy("binpack"))
    for uuid in inventory.device_uuids():
        record = inventory.device_record(uuid)
        plan = slice_on(record, shape)
        size = record.slice_for(shape)
        assert (plan is not None) == (size is not None and record.has_room(*size) and not record.withheld_for)
        assert (plan is not None) == bool(rows[record.row] and slots[record.row, record.col]), uuid
        if list(engine.matcher.shapes(demand)) == [shape]:
            others = tuple(other for other in inventory.device_uuids() if other != uuid)
            placement = engine.place(replace(demand, avoid_device_uuids=others))
            assert (plan is not None) == (placement is not None), uuid
            assert placement is None or placement.members == ((plan,),)

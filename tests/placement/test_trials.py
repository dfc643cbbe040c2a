"""What if: whatever is tried on the inventory, and however the trial is left, all is as before."""

from __future__ import annotations

import contextlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.coordinator.core.inventory import Inventory, InventoryError
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.values.types import Demand, SlicePlan
from bench.lib.scanning import ScanIndex
from tests.placement.pools import GIB, assert_sound, node, pool

DEMANDS = (
    Demand(share_milli=500, cpu_milli=8_000, affinity_group="g", max_per_node=1),
    Demand(count=2, host_memory_bytes=GIB),
    Demand(count=0, cpu_milli=1_000),
)
NODES = ("a", "b", "c")
UUIDS = tuple(f"GPU-{name}-{index}" for name in NODES for index in range(3))


class Spoilt(Exception):
    """What goes wrong inside of a trial."""


def crowded_pool() -> Inventory:
    """Also a device that vanished with a slice on it, and one that has become smaller than what is held of it."""
    inventory = pool(*(node(name, 3) for name in NODES))
    for uuid in UUIDS:
        inventory.reserve(SlicePlan(uuid[4], uuid, 500, 70 * GIB))
    for node_id in NODES:
        inventory.reserve_member(node_id, DEMANDS[0])
    spec = inventory.node("b").spec
    inventory.put_node(replace(spec, devices=spec.devices[:2]))
    spec = inventory.node("c").spec
    small = replace(spec.devices[0], memory_total_bytes=60 * GIB)
    inventory.put_node(replace(spec, devices=(small, *spec.devices[1:]), cpu_milli=4_000))
    inventory.withhold(UUIDS[1], "somebody")
    return inventory


def by_value(value: Any) -> Any:
    """What it is now. What can't change, as a spec, is not copied: that is most of it."""
    if is_dataclass(value):
        return {field.name: by_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: by_value(kept) for key, kept in value.items()}
    if isinstance(value, list):
        return [by_value(kept) for kept in value]
    return set(value) if isinstance(value, set) else value


def everything(inventory: Inventory) -> dict[str, Any]:
    """Every column of the table and every record, by value."""
    table = inventory.table
    columns = {name: array.copy() for name, array in vars(table).items() if isinstance(array, np.ndarray)}
    records = [by_value(inventory.node(node_id)) for node_id in inventory.node_ids()]
    totals = {key: by_value(value) for key, value in inventory.totals().items()}
    groups = {group: dict(by_node) for group, by_node in inventory.groups.items()}
    return {"records": records, "totals": totals, "groups": groups, "rows": table.rows, **columns}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert np.array_equal(value, after[name]) if isinstance(value, np.ndarray) else value == after[name], name


PLANS = st.builds(
    lambda uuid, share, gib: SlicePlan(uuid[4], uuid, share, gib * GIB),
    st.sampled_from(UUIDS),
    st.sampled_from([1, 250, 500, 1000]),
    st.sampled_from([0, 1, 9, 70]),
)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["reserve", "release"]), PLANS),
    st.tuples(st.sampled_from(["reserve_member", "release_member"]), st.sampled_from(NODES), st.sampled_from(DEMANDS)),
    st.tuples(st.just("withhold"), st.sampled_from(UUIDS), st.sampled_from(["", "x", "y"])),
    st.tuples(st.just("set_grantable"), st.sampled_from(NODES), st.booleans()),
    st.tuples(st.just("open_devices"), st.lists(st.sampled_from((*UUIDS, "gone")), max_size=3)),
    st.tuples(st.just("look")),
    st.tuples(st.just("spoil")),
    st.tuples(st.just("back")),
)
STEPS = st.recursive(CHANGES, lambda inner: st.tuples(st.just("trial"), st.lists(inner, max_size=6)), max_leaves=25)


def play(inventory: Inventory, engine: Engine, steps: list[tuple[Any, ...]]) -> None:
    mark, at_mark = inventory.mark, everything(inventory)
    for step in steps:
        match step:
            case ("look",):
                for demand in DEMANDS:
                    assert engine.fits(demand) == (engine.place(demand) is not None)
            case ("spoil",):
                raise Spoilt
            case ("back",):
                inventory.undo_to(mark)
                assert_same(at_mark, everything(inventory))
            case ("trial", inner):
                before = everything(inventory)
                with contextlib.suppress(Spoilt), inventory.trial():
                    play(inventory, engine, inner)
                assert_same(before, everything(inventory))
            case (name, *arguments):
                with contextlib.suppress(InventoryError):
                    getattr(inventory, name)(*arguments)


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_everything_is_as_it_was_however_a_trial_is_left(steps: list[tuple[Any, ...]]) -> None:
    inventory = crowded_pool()
    engine = Engine(inventory, make_policy("price"), compiled=False)
    oracle = Engine(inventory, make_policy("price"), index=ScanIndex)
    before = everything(inventory)

    with contextlib.suppress(Spoilt), inventory.trial():
        play(inventory, engine, steps)

    assert_same(before, everything(inventory))
    for demand in (*DEMANDS, Demand(share_milli=250), Demand(count=3)):
        assert engine.place(demand) == oracle.place(demand)
    inventory.reserve(SlicePlan("a", "GPU-a-0", 250, GIB))
    assert engine.place(Demand(share_milli=250)) == oracle.place(Demand(share_milli=250))


def test_rows_that_were_only_tried_are_not_scored_again() -> None:
    inventory = pool(node("a", 2))
    engine = Engine(inventory, make_policy("binpack"))
    engine.place(Demand())
    seen = inventory.changes.end
    with inventory.trial():
        inventory.reserve(SlicePlan("a", "GPU-a-0", 500, GIB))
        assert not engine.fits(Demand(count=2))
    assert inventory.changes.end == seen


def test_nodes_are_not_described_anew_during_a_trial() -> None:
    inventory = pool(node("a", 2))
    with inventory.trial():
        with pytest.raises(InventoryError, match="trial"):
            inventory.put_node(node("b"))
        with pytest.raises(InventoryError, match="trial"):
            inventory.remove_node("a")
        with pytest.raises(InventoryError, match="trial"):
            inventory.set_device("GPU-a-0", foreign_bytes=1, healthy=True)
    inventory.put_node(node("b"))
    assert_sound(inventory)

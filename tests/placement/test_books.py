"""The inventory keeps exact books and refuses what would make them wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.inventory import Inventory, InventoryError
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.values.types import UNKNOWN, Demand, SlicePlan
from tests.core.inventories import canonical
from tests.placement.pools import GIB, MIB, assert_sound, node, pool


def plan(name: str, index: int, share: int, memory: int = MIB) -> SlicePlan:
    return SlicePlan(name, f"GPU-{name}-{index}", share, memory)


def test_a_slice_is_held_until_released() -> None:
    inventory = pool(node("a"))
    inventory.reserve(plan("a", 0, 400, 10 * GIB))
    view = inventory.device("GPU-a-0")
    assert (view.share_used_milli, view.memory_used_bytes, view.slices) == (400, 10 * GIB, 1)
    assert inventory.totals()["default", "A100-80"].share_used_milli == 400
    inventory.release(plan("a", 0, 400, 10 * GIB))
    assert inventory.device("GPU-a-0").slices == 0
    assert_sound(inventory)


@pytest.mark.parametrize(
    "wrong",
    [
        plan("a", 0, 601),
        plan("a", 0, 1, 80 * GIB),
        plan("a", 0, 0),
        plan("a", 0, 10, -1),
        SlicePlan("a", "GPU-nowhere", 10, MIB),
    ],
)
def test_what_a_device_cannot_hold_is_refused_and_changes_nothing(wrong: SlicePlan) -> None:
    inventory = pool(node("a"))
    inventory.reserve(plan("a", 0, 400))
    before = canonical(inventory)
    with pytest.raises(InventoryError):
        inventory.reserve(wrong)
    assert canonical(inventory) == before


def test_releasing_twice_is_refused() -> None:
    inventory = pool(node("a"))
    inventory.reserve(plan("a", 0, 400))
    inventory.release(plan("a", 0, 400))
    with pytest.raises(InventoryError, match="released twice"):
        inventory.release(plan("a", 0, 400))


def test_a_uuid_belongs_to_one_node() -> None:
    inventory = pool(node("a"))
    thief = msgspec.structs.replace(node("b"), devices=node("a").devices[:1])
    with pytest.raises(InventoryError, match="belongs to node 'a'"):
        inventory.put_node(thief)
    assert not inventory.has_node("b")


def test_a_node_described_anew_keeps_what_is_held() -> None:
    inventory = pool(node("a"), node("b"))
    inventory.reserve(plan("a", 3, 500, GIB))
    inventory.put_node(node("a", labels=(("zone", "1"),)))
    inventory.put_node(node("a", devices=4))
    assert inventory.device("GPU-a-3").share_used_milli == 500
    assert not inventory.has_device("GPU-a-7")
    assert list(inventory.node_ids()) == ["a", "b"]
    assert_sound(inventory)


def test_a_device_that_vanished_stays_until_its_last_slice_is_gone() -> None:
    inventory = pool(node("a"))
    inventory.reserve(plan("a", 7, 500, GIB))
    inventory.put_node(node("a", devices=4))
    assert not inventory.device("GPU-a-7").present
    assert_sound(inventory)
    inventory.release(plan("a", 7, 500, GIB))
    assert not inventory.has_device("GPU-a-7")
    assert_sound(inventory)


def test_a_node_in_use_is_not_removed() -> None:
    inventory = pool(node("a"), node("b"))
    inventory.reserve(plan("a", 0, 1))
    with pytest.raises(InventoryError, match="still carries leases"):
        inventory.remove_node("a")
    inventory.remove_node("b")
    assert list(inventory.node_ids()) == ["a"]
    assert inventory.totals()["default", "A100-80"].devices == 8


def test_host_parts_are_held_only_where_reported() -> None:
    inventory = pool(node("a", cpu_milli=4000), node("b", cpu_milli=UNKNOWN))
    inventory.reserve_member("a", Demand(count=0, cpu_milli=4000))
    with pytest.raises(InventoryError):
        inventory.reserve_member("a", Demand(count=0, cpu_milli=1))
    inventory.reserve_member("b", Demand(count=0, cpu_milli=10**9))
    inventory.release_member("a", Demand(count=0, cpu_milli=4000))
    with pytest.raises(InventoryError):
        inventory.release_member("a", Demand(count=0, cpu_milli=1))


def test_host_memory_is_held_to_the_last_byte_and_keeps_its_node() -> None:
    inventory, member = pool(node("a")), Demand(count=0, host_memory_bytes=256 * GIB)
    for _ in range(2):
        inventory.reserve_member("a", member)
    assert_sound(inventory)
    with pytest.raises(InventoryError, match="0 bytes left; 0 and 1 were asked for"):
        inventory.reserve_member("a", Demand(count=0, host_memory_bytes=1))
    with pytest.raises(InventoryError, match="still carries leases"):
        inventory.remove_node("a")
    for _ in range(2):
        inventory.release_member("a", member)
    with pytest.raises(InventoryError, match="released twice"):
        inventory.release_member("a", Demand(count=0, host_memory_bytes=1))
    inventory.remove_node("a")


def test_members_of_a_group_are_counted() -> None:
    inventory, member = pool(node("a"), node("b")), Demand(share_milli=500, affinity_group="g")
    for name in ("a", "a", "b"):
        inventory.reserve_member(name, member)
    assert inventory.groups == {"g": {"a": 2, "b": 1}}
    with pytest.raises(InventoryError, match="released twice"):
        inventory.release_member("a", Demand(share_milli=500, affinity_group="h"))
    with pytest.raises(InventoryError, match="still carries leases"):
        inventory.remove_node("b")
    for name in ("a", "b", "a"):
        inventory.release_member(name, member)
    assert inventory.groups == {}
    assert_sound(inventory)


@given(parts=st.integers(1, 1000), memory_gib=st.integers(1, 200), reserved_mib=st.integers(0, 900))
def test_equal_parts_of_a_device_always_fit(parts: int, memory_gib: int, reserved_mib: int) -> None:
    inventory = Inventory()
    spec = node("a", devices=1, memory_gib=memory_gib)
    device = msgspec.structs.replace(spec.devices[0], memory_reserved_bytes=reserved_mib * MIB + 12345)
    inventory.put_node(msgspec.structs.replace(spec, devices=(device,)))
    share, memory = inventory.classes[0].size_of(Demand(share_milli=1000 // parts))
    assert memory % MIB == 0 or share == 1000
    assert memory * parts <= device.leasable_bytes
    for _ in range(parts):
        inventory.reserve(SlicePlan("a", device.uuid, share, memory))


def test_resolution_of_whole_part_and_memory() -> None:
    inventory = pool(node("a"))
    leasable = 80 * GIB - GIB // 2
    assert inventory.classes[0].size_of(Demand()) == (1000, leasable)
    assert inventory.classes[0].size_of(Demand(share_milli=1000)) == (1000, leasable)
    assert inventory.classes[0].size_of(Demand(share_milli=250))[1] == leasable // 4 // MIB * MIB
    assert inventory.classes[0].size_of(Demand(memory_bytes=leasable // 2))[0] == 500
    assert inventory.classes[0].size_of(Demand(memory_bytes=leasable // 2 + 1))[0] == 501
    assert inventory.classes[0].size_of(Demand(share_milli=10, memory_bytes=7)) == (10, 7)


def test_canonical_form_does_not_depend_on_order() -> None:
    one, two = pool(node("a"), node("b")), pool(node("b"), node("a"))
    for inventory, order in ((one, (0, 1)), (two, (1, 0))):
        for index in order:
            inventory.reserve(plan("a", index, 100))
    assert canonical(one) == canonical(two)


def test_a_node_that_lost_cpu_is_of_use_again_when_enough_is_given_back() -> None:
    inventory = pool(node("a", cpu_milli=8_000))
    demand = Demand(cpu_milli=3_000)
    engine = Engine(inventory, make_policy("binpack"))
    for _ in range(2):
        inventory.reserve_member("a", demand)
    inventory.put_node(node("a", cpu_milli=5_000))
    assert engine.place(demand) is None
    inventory.release_member("a", demand)
    assert_sound(inventory)
    assert engine.place(Demand(cpu_milli=2_000)) is not None

"""A refusal names, by device class, what is missing and the least that would do."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, Reason, make_policy
from aliquot.coordinator.core.values.types import SERVE_LABELS, Demand, Missing, SlicePlan, Topology
from tests.placement.pools import GIB, node, pool


def the_only(inventory: Inventory, demand: Demand) -> Missing:
    shortfall = Engine(inventory, make_policy("binpack")).explain(demand)
    assert len(shortfall.missing) == 1
    assert shortfall.missing[0].detail in shortfall.summary
    return shortfall.missing[0]


def hold_share(inventory: Inventory, uuid: str, share: int, memory: int = GIB) -> None:
    inventory.reserve(SlicePlan(inventory.device(uuid).node_id, uuid, share, memory))


def test_an_empty_pool() -> None:
    missing = Engine(Inventory(), make_policy("binpack")).explain(Demand()).missing
    assert [m.reason for m in missing] == [Reason.NO_DEVICES]


@pytest.mark.parametrize(
    ("demand", "reason", "change"),
    [
        (Demand(models=(("H100-80",),)), Reason.OTHER_MODEL, "allow A100-80"),
        (Demand(vendor="amd"), Reason.OTHER_VENDOR, "allow nvidia"),
        (Demand(mig_profile="1g.10gb"), Reason.OTHER_PROFILE, "ask without a MIG profile"),
        (Demand(pool="other"), Reason.OTHER_POOL, "ask in another pool"),
        (Demand(pool="other", count=9), Reason.OTHER_POOL, "ask in another pool"),
        (
            Demand(pool="default", count=9),
            Reason.TOO_FEW_DEVICES_ON_NODE,
            "ask for at most 8 per member, or for a gang",
        ),
        (Demand(memory_bytes=200 * GIB), Reason.MEMORY_OVER_DEVICE, "ask for at most 79.5Gi per device"),
        (Demand(count=9), Reason.TOO_FEW_DEVICES_ON_NODE, "ask for at most 8 per member, or for a gang"),
        (Demand(count=5, topology=Topology.REQUIRE_ISLAND), Reason.NO_ISLAND, "prefer an island instead"),
        (Demand(node_selector=(("zone", "x"),)), Reason.SELECTOR, "drop the node selector"),
        (Demand(node_selector=((f"{SERVE_LABELS}mig", "yes"),)), Reason.SERVE, "ask for a local lease"),
        (Demand(cpu_milli=97_000), Reason.HOST_TOO_SMALL, "ask for less CPU or memory"),
        (Demand(gang_size=3, count=8), Reason.GANG_OVER_POOL, "ask for at most 2 members"),
    ],
)
def test_what_can_never_fit(demand: Demand, reason: Reason, change: str) -> None:
    inventory = pool(node("a", island_size=4), node("b", island_size=4))
    missing = the_only(inventory, demand)
    assert missing.reason == reason
    assert missing.smallest_change.startswith(change)
    assert missing.devices == 16
    assert Engine(inventory, make_policy("binpack")).explain(demand).impossible


def test_what_does_not_fit_now() -> None:
    inventory = pool(node("a", 2), node("b", 2))
    for uuid in inventory.device_uuids():
        hold_share(inventory, uuid, 600, 60 * GIB)
    inventory.release(SlicePlan("b", "GPU-b-1", 600, 60 * GIB))
    hold_share(inventory, "GPU-b-1", 10, 70 * GIB)
    share = the_only(inventory, Demand(share_milli=995, memory_bytes=GIB))
    assert share.reason == Reason.SHARE_HELD
    assert "has left is 0.99" in share.detail
    assert share.smallest_change == "ask for share 0.99, or wait for 0.005 more there"
    memory = the_only(inventory, Demand(share_milli=500, memory_bytes=30 * GIB))
    assert memory.reason == Reason.MEMORY_HELD
    assert memory.smallest_change == "ask for 9.5Gi, or wait for 20.5Gi more there"
    spread = the_only(inventory, Demand(count=2, share_milli=500, memory_bytes=GIB))
    assert spread.reason == Reason.FRAGMENTED
    gang = the_only(inventory, Demand(gang_size=4, share_milli=500, memory_bytes=GIB))
    assert gang.reason == Reason.GANG_TOO_LARGE_NOW
    assert "1 of 4 members fit now" in gang.detail
    assert gang.smallest_change.startswith("a gang of 1, or 3 more places of ")


def test_nodes_that_are_not_ready_and_hosts_that_are_full() -> None:
    inventory = pool(node("a"))
    inventory.reserve_member("a", Demand(count=0, cpu_milli=95_000, affinity_group="web"))
    assert the_only(inventory, Demand(cpu_milli=2_000)).reason == Reason.HOST_HELD
    assert the_only(inventory, Demand(affinity_group="web", max_per_node=1)).reason == Reason.ANTI_AFFINITY
    inventory.set_grantable("a", False)
    assert the_only(inventory, Demand()).reason == Reason.NOT_READY


def test_the_summary_is_about_the_class_that_is_nearest() -> None:
    inventory = pool(node("a"), node("t", model="T4", memory_gib=16))
    hold_share(inventory, "GPU-t-0", 1)
    for index in range(8):
        hold_share(inventory, f"GPU-a-{index}", 500)
    shortfall = Engine(inventory, make_policy("binpack")).explain(Demand(memory_bytes=60 * GIB))
    assert not shortfall.impossible
    assert shortfall.summary.startswith("1 device (60.0Gi) does not fit now: A100-80 (79.5Gi): ")

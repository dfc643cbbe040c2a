"""Agents on nodes whose cards are not all of one kind, or change under them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from aliquot.common.tiers import Tier
from aliquot.simgpu.drm import Machine, create
from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, desired
from tests.agent.test_metrics_endpoint import scrape, value

ENDED = (-signal.SIGTERM, -signal.SIGKILL)
ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE


def devices(coordinator: Coordinator) -> dict[str, types_pb2.Device]:
    return {device.uuid: device for device in coordinator.snapshots[-1].node.devices}


async def start(node: Node, coordinator: Coordinator, *kinds: str) -> None:
    await asyncio.to_thread(node.start, coordinator.address, "--devices", ",".join(kinds))
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")


def minor(machine: Machine, place: int) -> str:
    return str(machine.books().cards[place].parts[0].minor)


async def test_cards_of_three_vendors_are_one_nodes_and_a_cheat_on_each_is_held(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    machine = create(tmp_path / "machine", ["MI210", "B580"])
    await start(node, coordinator, "nvml", f"drm:{machine.root}")
    told = devices(coordinator)
    assert sorted(device.vendor for device in told.values()) == ["amd", "intel", "nvidia", "nvidia"]
    assert len({device.index for device in told.values()}) == 4
    by_vendor = {device.vendor: uuid for uuid, device in told.items()}
    slices = [
        desired(uuid, slice_id=f"l-{vendor}.1.0", lease_id=f"l-{vendor}", memory_bytes=2 * GIB)
        for vendor, uuid in by_vendor.items()
    ]
    coordinator.desire(*slices, full=True)
    for each in slices:
        report = await coordinator.until_status(each.slice_id, ACTIVE)
        assert report.tier == Tier.WATCHDOG.value
    hold = (sys.executable, "-m", "aliquot.simgpu.drm.hold", str(machine.root), "--piece", "512Mi", "--seconds", "600")
    modest = node.job(*hold, "--minor", minor(machine, 0), "--most", "1Gi", lease_id="l-amd")
    await auntil(lambda: any(each.pid == modest.pid for each in machine.books().held), "it holds a card")
    cheats = [
        node.burn("6Gi", lease_id="l-nvidia"),
        node.job(*hold, "--minor", minor(machine, 0), "--most", "6Gi", lease_id="l-amd"),
        node.job(*hold, "--minor", minor(machine, 1), "--most", "6Gi", lease_id="l-intel"),
    ]
    for cheat in cheats:
        await auntil(lambda cheat=cheat: cheat.poll() is not None, "the cheat was ended")  # type: ignore[misc]
        assert cheat.returncode in ENDED


async def test_cards_that_cant_be_leased_are_in_the_metrics_and_nowhere_else(
    node: Node, coordinator: Coordinator, tmp_path: Path, job: Callable[[], int]
) -> None:
    machine = create(tmp_path / "machine", ["A770", "MI210"])
    arc = machine.address(0)
    await start(node, coordinator, f"drm:{machine.root}")
    assert [device.vendor for device in devices(coordinator).values()] == ["amd"]
    assert any("i915" in condition.text for condition in coordinator.snapshots[-1].node.conditions)
    machine.take(job(), 0, GIB)

    def figure(name: str, model: str = "ARC-A770") -> float | None:
        return value(scrape(node), f"aliquot_device_{name}", model=model)

    await auntil(lambda: figure("foreign_bytes") == GIB, f"what a process holds of {arc} is told")
    await auntil(lambda: figure("temperature_celsius") == 40, "how hot it is, too")
    assert figure("memory_used_bytes") is None
    assert figure("healthy") is None
    assert figure("healthy", "MI210") == 1


async def test_a_lease_is_shown_its_own_vendors_devices(node: Node, coordinator: Coordinator, tmp_path: Path) -> None:
    machine = create(tmp_path / "machine", ["MI210"])
    await start(node, coordinator, "nvml", f"drm:{machine.root}")
    amd = next(uuid for uuid, device in devices(coordinator).items() if device.vendor == "amd")
    coordinator.desire(desired(amd), full=True)
    await coordinator.until_status("l-1.1.0", ACTIVE)
    job = node.job("sh", "-c", "echo $ROCR_VISIBLE_DEVICES/$CUDA_VISIBLE_DEVICES/$NVIDIA_VISIBLE_DEVICES")
    assert job.stdout is not None
    said = (await asyncio.to_thread(job.stdout.read)).decode()
    assert said.strip().splitlines()[-1] == f"{amd}//"


async def test_a_card_that_is_cut_under_an_agent_is_lost_and_its_parts_are_new(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    machine = create(tmp_path / "machine", ["MI300X", "MI210"])
    await start(node, coordinator, f"drm:{machine.root}")
    whole, other = devices(coordinator)
    machine.cut(0, "CPX", "NPS4")

    def parts() -> set[str]:
        return {uuid for uuid, device in devices(coordinator).items() if device.parent_uuid == whole}

    await auntil(lambda: len(parts()) == 8, "the parts are told")
    assert devices(coordinator).keys() == parts() | {other}
    machine.cut(0, "SPX", "NPS1")
    await auntil(lambda: devices(coordinator).keys() == {whole, other}, "it is whole again, and who it was")


async def test_a_card_that_falls_off_the_bus_and_returns_is_told(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    machine = create(tmp_path / "machine", ["MI210", "MI210"])
    await start(node, coordinator, f"drm:{machine.root}")
    first, second = devices(coordinator)
    machine.unplug(0)
    await auntil(lambda: devices(coordinator).keys() == {second}, "it is gone")
    machine.plug(0)
    node.kill9()
    coordinator.snapshots.clear()
    await start(node, coordinator, f"drm:{machine.root}")
    assert devices(coordinator).keys() == {first, second}

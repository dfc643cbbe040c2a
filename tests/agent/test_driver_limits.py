"""The driver's own limits: offered only where setting one works, and set where processes are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.processes.cgroups import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, auntil, desired

NOT_FOUND = 6
ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE

pytestmark = pytest.mark.root("to set the memory limit of a cgroup")


async def start(node: Node, coordinator: Coordinator) -> None:
    if find_mount(MOUNTINFO.read_text()) is None:
        pytest.skip("needs cgroup v2")
    node.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "driver,watchdog"
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")


async def test_a_driver_that_reads_limits_and_sets_none_offers_none(node: Node, coordinator: Coordinator) -> None:
    # Such is a cgroup without files of its own: it answers for one above it.
    node.scenario.fail("nvmlDeviceSetMemoryLimits_v1", NOT_FOUND)
    await start(node, coordinator)
    device = coordinator.snapshots[-1].node.devices[0]
    assert Tier.DRIVER.value not in set(device.tiers)
    assert Tier.WATCHDOG.value in set(device.tiers)


async def test_a_driver_that_sets_them_offers_them_and_nothing_is_left_of_the_trial(
    node: Node, coordinator: Coordinator
) -> None:
    await start(node, coordinator)
    assert Tier.DRIVER.value in set(coordinator.snapshots[-1].node.devices[0].tiers)
    mount = find_mount(MOUNTINFO.read_text())
    assert mount is not None
    assert not list(mount.directory.glob("aliquot/*/offered"))


async def test_a_part_of_a_leases_cgroup_is_limited_as_well(node: Node, coordinator: Coordinator) -> None:
    await start(node, coordinator)
    uuid = node.uuids[0]
    coordinator.desire(desired(uuid), full=True)
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert report.tier == Tier.DRIVER.value
    mount = find_mount(MOUNTINFO.read_text())
    assert mount is not None
    (leaf,) = mount.directory.glob(f"aliquot/{coordinator.snapshots[-1].node.node_id}/l-1/1.0")
    job = node.job("sh", "-c", "echo $NVIDIA_GPU_MEMORY_LIMIT; sleep 60")
    assert job.stdout is not None
    told = await asyncio.to_thread(job.stdout.readline)
    assert int(told) == report.memory_bytes, "what NVIDIA's toolkit would set for a container of the lease"
    part = leaf / "made-by-its-tenant"
    part.mkdir()

    await auntil(lambda: limit_of(node, part) == report.memory_bytes, "the part has the limit")
    assert limit_of(node, leaf) == report.memory_bytes
    part.rmdir()


def limit_of(node: Node, cgroup: Path) -> int | None:
    """As any program may ask the driver; None: it has none."""
    ask = [sys.executable, "-c", ASK, node.uuids[0], str(cgroup)]
    done = subprocess.run(ask, env=node.base_environment(), capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


ASK = """
import sys, pynvml
pynvml.nvmlInit()
limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=sys.argv[2].encode())
pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1]), limits)
print(limits.hardLimit)
"""

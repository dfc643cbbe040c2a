"""The driver's own limits: offered only where setting one works, and set where processes are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.client.local import LocalAgent
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.foreign_cgroups import named, subtree
from tests.agent.harness import Node, auntil, desired
from tests.enforce.scripts import SET_LIMIT

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


async def test_by_the_drivers_own_books_the_leaf_alone_has_a_limit_and_it_goes_before_the_cgroup(
    node: Node, coordinator: Coordinator
) -> None:
    leaf, job = await granted(node, coordinator)
    memory_bytes = (await coordinator.until_status("l-1.1.0", ACTIVE)).memory_bytes
    assert await line_of(job) == "none", "a container with a limit of its own would have as much again"
    part = leaf / "made-by-its-tenant"
    part.mkdir()
    assert limit_of(node, part) == memory_bytes, "that of the nearest above"
    # As NVIDIA's toolkit does for a container that asks for it.
    assert await asyncio.to_thread(set_limit, node, part, memory_bytes) == 0
    await auntil(lambda: set(node.scenario.limits(0)) == {str(leaf)}, "the part's own is lifted")
    assert node.scenario.limits(0)[str(leaf)] == (memory_bytes, memory_bytes), "all of it is guaranteed"
    part.rmdir()

    coordinator.desire(desired(node.uuids[0], stop=True), full=True)
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert node.scenario.limits(0) == {}


async def test_where_limits_nest_parts_are_shown_them_and_containers_are_told(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.set_limits_nested(nested=True)
    leaf, job = await granted(node, coordinator)
    memory_bytes = (await coordinator.until_status("l-1.1.0", ACTIVE)).memory_bytes
    mib = memory_bytes >> 20
    assert await line_of(job) == f"{mib} {mib}", "what NVIDIA's toolkit reads for a container, in MiB"
    part = leaf / "made-by-its-tenant"
    part.mkdir()
    await auntil(lambda: limit_of(node, part) == memory_bytes, "the part has the limit")
    assert limit_of(node, leaf) == memory_bytes
    part.rmdir()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_cgroup_beside_the_leases_own_is_no_second_limit(
    node: Node, coordinator: Coordinator, nested: bool
) -> None:
    node.scenario.set_limits_nested(nested=nested)
    with subtree("aliquot-beside") as top:
        _, job = await granted(node, coordinator)
        await line_of(job)
        pod = top / "pod"
        pod.mkdir()
        await asyncio.to_thread(attach_cgroup, node, pod)
        # The job is in the leaf: two cgroups that nothing bounds together are not held by the driver.
        await auntil(lambda: tier_of(node) is Tier.WATCHDOG, "the watchdog answers for both")
        job.kill()
        job.wait()


async def test_an_attached_cgroup_has_all_of_the_limit_and_the_leaf_nothing(
    node: Node, coordinator: Coordinator
) -> None:
    with subtree("aliquot-beside") as top:
        await start(node, coordinator)
        coordinator.desire(desired(node.uuids[0]), full=True)
        memory_bytes = (await coordinator.until_status("l-1.1.0", ACTIVE)).memory_bytes
        pod = top / "pod"
        pod.mkdir()
        await asyncio.to_thread(attach_cgroup, node, pod)
        assert tier_of(node) is Tier.DRIVER
        limits = node.scenario.limits(0)
        assert limits.pop(str(pod)) == (memory_bytes, memory_bytes)
        ((soft, hard),) = limits.values()
        assert (soft, hard) == (0, 2 << 20)


async def granted(node: Node, coordinator: Coordinator) -> tuple[Path, subprocess.Popen[bytes]]:
    """The leaf of a lease that the driver holds, and a job in it that says what a container would be told."""
    await start(node, coordinator)
    coordinator.desire(desired(node.uuids[0]), full=True)
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert report.tier == Tier.DRIVER.value
    mount = find_mount(MOUNTINFO.read_text())
    assert mount is not None
    (leaf,) = mount.directory.glob(f"aliquot/{coordinator.snapshots[-1].node.node_id}/l-1/1.0")
    told = "${NVIDIA_GPU_MEMORY_REQUEST-none} $NVIDIA_GPU_MEMORY_LIMIT"
    return leaf, node.job("sh", "-c", f"echo {told}; exec sleep 60")


async def line_of(job: subprocess.Popen[bytes]) -> str:
    assert job.stdout is not None
    return (await asyncio.to_thread(job.stdout.readline)).decode().strip()


def tier_of(node: Node) -> Tier | None:
    piece = node.slice_of("l-1.1.0")
    return Tier(piece.tier) if piece is not None and piece.tier else None


def attach_cgroup(node: Node, pod: Path) -> None:
    LocalAgent(node.socket).attach_cgroup("l-1", named(pod), member=0, uid=0)


def set_limit(node: Node, cgroup: Path, hard_bytes: int) -> int:
    command = [sys.executable, "-c", SET_LIMIT, node.uuids[0], str(cgroup), str(hard_bytes)]
    return subprocess.run(command, env=node.base_environment(), check=False).returncode


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

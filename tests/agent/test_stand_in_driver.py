"""An NVML without a CUDA driver, as stand-ins for test clusters have: nothing is claimed that would not hold, and
`aliquot doctor` says the same.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent.core.samples import DeviceInfo, ProcessList, ProcessSample
from aliquot.agent.doctor.checks import Mark
from aliquot.agent.enforce import prerequisites
from aliquot.agent.enforce.prerequisites import CudaDriver, why_unmeasured
from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, desired, until
from tests.agent.test_enforcement_on_processes import grant
from tests.enforce.test_doctor import doctor

GPU = DeviceInfo("GPU-a", 0, "GPU", "GPU", "nvidia", 8 * GIB, 0)


@pytest.fixture
def only_nvml(tmp_path: Path) -> str:
    """A folder with the management library alone."""
    folder = tmp_path / "only-nvml"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").symlink_to(simgpu.library_directory() / "libnvidia-ml.so.1")
    return str(folder)


async def test_without_a_cuda_driver_no_tier_is_offered_that_holds_processes(
    node: Node, coordinator: Coordinator, only_nvml: str
) -> None:
    node.environment["LD_LIBRARY_PATH"] = only_nvml
    node.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "mig,preload,watchdog"
    await grant(node, coordinator)
    (snapshot, *_) = coordinator.snapshots
    for device in snapshot.node.devices:
        assert list(device.tiers) == [types_pb2.TIER_NONE], "a whole device needs no holding"
    coordinator.desire(desired(node.uuids[0]))
    refused = await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert refused.reason == "TIER_UNAVAILABLE"
    assert "libcuda.so.1 can't be loaded" in refused.detail


def test_doctor_says_the_same(tmp_path: Path, only_nvml: str) -> None:
    _, found = doctor(tmp_path, LD_LIBRARY_PATH=only_nvml)
    assert found["CUDA"][0] == Mark.NOTE
    for tier in ("tier preload", "tier watchdog"):
        mark, text = found[tier]
        assert mark == Mark.NOTE
        assert "libcuda.so.1 can't be loaded" in text


async def test_where_processes_memory_is_not_told_there_is_no_watchdog(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    await asyncio.to_thread(node.foreign_burn, "1Gi", 0)
    node.scenario.set(0, processes_memory_unknown=1)
    await auntil(lambda: types_pb2.TIER_WATCHDOG not in node.status().devices[0].tiers, "the tier is not offered")
    assert types_pb2.TIER_WATCHDOG in node.status().devices[1].tiers
    _, found = await asyncio.to_thread(doctor, node.directory)
    assert "can't be had" in found["tier watchdog"][1]
    assert "does not tell" in found["tier watchdog"][1]
    node.scenario.set(0, processes_memory_unknown=0)
    await auntil(lambda: types_pb2.TIER_WATCHDOG in node.status().devices[0].tiers, "it is told again")


@pytest.mark.parametrize(
    ("told", "usable"), [([], True), ([None], False), ([None, None], False), ([None, 1], True), ([0], True)]
)
def test_one_process_without_an_answer_proves_nothing_where_others_have_one(
    told: list[int | None], usable: bool
) -> None:
    listed = ProcessList(tuple(ProcessSample(pid, memory_bytes) for pid, memory_bytes in enumerate(told)))
    assert (why_unmeasured(listed) == "") is usable


def test_a_missing_driver_is_looked_for_again_while_nobody_waits() -> None:
    now = [0.0]
    answers = iter(["missing", ""])
    slow = threading.Event()
    slow.set()

    def try_to_load() -> str:
        assert slow.wait(30)
        return next(answers)

    driver = CudaDriver(try_to_load, lambda: now[0])
    driver.look()
    assert driver.why_not(GPU) == "missing"
    slow.clear()
    now[0] += prerequisites.AGAIN_S
    assert driver.why_not(GPU) == "missing", "it is not known yet, and does not hold up the agent"
    slow.set()
    until(lambda: driver.why_not(GPU) == "", "it is found")
    now[0] += prerequisites.AGAIN_S
    assert driver.why_not(GPU) == "", "and once found, it is there"


def test_a_driver_that_hangs_is_not_taken_for_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "_TRY", "import time; time.sleep(600)")
    monkeypatch.setattr(prerequisites, "_TRY_TIMEOUT_S", 0.2)
    assert "could not be found out" in prerequisites.try_to_load()

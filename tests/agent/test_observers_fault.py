"""The observer's fault is not the observed's: a driver that fails as a whole, one card that is refused, a card whose
compute mode lets one process in.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pynvml
import pytest

from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, auntil, desired
from tests.agent.test_enforcement_on_processes import ACTIVE, grant

UNKNOWN_ERROR = 999
EVERYTHING = (
    "memory", "processes", "utilization", "temperature", "power", "clocks", "fields", "throttle", "pcie", "nvlink",
    "limits", "identity", "handle", "count", "init",
)  # fmt: skip


async def test_a_driver_that_fails_as_a_whole_ends_nobody_and_is_opened_again(
    node: Node, coordinator: Coordinator
) -> None:
    node.environment |= {"ALIQUOT_AGENT_POLL_HEALTH": "500ms", "ALIQUOT_AGENT_POLL_CALM": "100ms"}
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    for call in EVERYTHING:
        node.scenario.fail(call, UNKNOWN_ERROR)

    await coordinator.until(lambda: "driver" in conditions(coordinator), "the node says so")
    assert "no device answers" in conditions(coordinator)["driver"]
    devices = coordinator.snapshots[-1].node.devices
    assert not any(device.healthy for device in devices), "it takes no new leases"
    assert all(not device.sign.cause for device in devices), "and no card is to blame, so no incident begins"
    assert job.poll() is None
    node.scenario.clear_faults()
    await coordinator.until(lambda: "driver" not in conditions(coordinator), "it was opened again")
    await coordinator.until(lambda: _well(coordinator) >= set(node.uuids), "its cards take leases again")
    assert job.poll() is None


def _well(coordinator: Coordinator) -> set[str]:
    well: dict[str, bool] = {each.uuid: each.healthy for each in coordinator.snapshots[-1].node.devices}
    for delta in coordinator.deltas:
        well |= {each.uuid: each.healthy for each in delta.devices if each.HasField("healthy")}
    return {uuid for uuid, healthy in well.items() if healthy}


def conditions(coordinator: Coordinator) -> dict[str, str]:
    """What the agent told last of its node."""
    return {each.subject: each.text for each in coordinator.snapshots[-1].node.conditions}


REFUSED = """
import pynvml
from aliquot.agent.devices.nvml import NvmlBackend
real = pynvml.nvmlDeviceGetHandleByIndex
def handle(index):
    if index == 0:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    return real(index)
pynvml.nvmlDeviceGetHandleByIndex = handle
backend = NvmlBackend()
backend.open()
found = backend.discover()
print([device.index for device in found.devices], *found.problems)
"""


def test_a_handle_that_is_refused_is_refused_of_one_card(node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], env=node.base_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("[1] GPU 0: ")


async def test_one_card_that_is_refused_takes_no_other_away_and_is_told_of(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.fail("identity", pynvml.NVML_ERROR_NO_PERMISSION, 0)
    await grant(node, coordinator)
    assert [device.uuid for device in coordinator.snapshots[0].node.devices] == [node.uuids[1]]
    assert "GPU 0: " in conditions(coordinator)["devices"]


async def test_cards_whose_compute_mode_lets_one_process_in_are_leased_whole_and_prohibited_ones_not_at_all(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.set(0, compute_mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    node.scenario.set(1, compute_mode=pynvml.NVML_COMPUTEMODE_PROHIBITED)
    await grant(node, coordinator)
    whole, shut = coordinator.snapshots[0].node.devices
    assert (whole.whole_only, whole.healthy, shut.healthy) == (True, True, False)
    assert "PROHIBITED" in shut.health_reason
    assert "nvidia-smi -c DEFAULT" in conditions(coordinator)["unleasable"]
    assert "whole only" in conditions(coordinator)["whole-only"]


async def test_a_compute_mode_that_is_changed_while_the_agent_runs_is_seen_at_a_poll(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)

    def whole_only() -> list[bool]:
        return [device.whole_only for device in coordinator.snapshots[-1].node.devices]

    assert whole_only() == [False, False]
    node.scenario.set(1, compute_mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    await coordinator.until(lambda: whole_only() == [False, True], "no parts of it are to be leased")
    node.scenario.set(1, compute_mode=pynvml.NVML_COMPUTEMODE_DEFAULT)
    await coordinator.until(lambda: whole_only() == [False, False], "parts of it can be leased again")


async def test_a_leased_card_that_becomes_prohibited_keeps_its_lease_and_takes_no_other(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")

    def takes_leases() -> list[bool]:
        return [device.healthy for device in coordinator.snapshots[-1].node.devices]

    node.scenario.set(0, compute_mode=pynvml.NVML_COMPUTEMODE_PROHIBITED)
    await coordinator.until(lambda: takes_leases() == [False, True], "nothing new is to be placed there")
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.hellos) == 2 and takes_leases() == [False, True], "still not")
    assert [piece.status for piece in coordinator.snapshots[-1].slices] == [ACTIVE], "the limit could be set again"
    assert not coordinator.snapshots[-1].node.devices[0].sign.cause, "the card is not to blame, so no incident begins"
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and job.pid in piece.pids, "it is watched")
    node.scenario.set(0, compute_mode=pynvml.NVML_COMPUTEMODE_DEFAULT)
    await coordinator.until(lambda: takes_leases() == [True, True], "it takes leases again")
    assert job.poll() is None


async def test_a_display_card_serves_nothing_and_one_whose_mig_mode_will_change_no_parts(
    node: Node, coordinator: Coordinator
) -> None:
    node.scenario.set(0, name="NVIDIA DGX Display")
    node.scenario.set_mig_mode(1, enabled=True, pending=True)
    await grant(node, coordinator)
    (device,) = coordinator.snapshots[0].node.devices
    assert (device.uuid, device.whole_only) == (node.uuids[1], True)
    assert "serves a screen" in conditions(coordinator)["unleasable"]
    assert "nvidia-smi --gpu-reset -i 1" in conditions(coordinator)["whole-only"]


@pytest.mark.parametrize("by", ["uuid", "model", "index", "pci_bus_id"])
async def test_a_device_is_left_out_by_whatever_names_it(node: Node, coordinator: Coordinator, by: str) -> None:
    names = {"uuid": node.uuids[0], "model": "a100-40", "index": "0", "pci_bus_id": "0000:07:00.0"}
    node.environment["ALIQUOT_AGENT_LEAVE_OUT"] = names[by]
    await grant(node, coordinator)
    left = [device.uuid for device in coordinator.snapshots[0].node.devices]
    assert left == ([] if by == "model" else [node.uuids[1]])
    assert "`leave_out`" in conditions(coordinator)["unleasable"]


async def test_a_card_that_does_not_tell_its_memory_is_named(node: Node, coordinator: Coordinator) -> None:
    node.scenario.fail("memory", pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    await grant(node, coordinator)
    assert [device.uuid for device in coordinator.snapshots[0].node.devices] == [node.uuids[0]]
    assert node.uuids[1] in conditions(coordinator)["unleasable"]


async def test_a_kernel_log_that_can_not_be_read_is_a_condition_of_the_node(
    node: Node, coordinator: Coordinator
) -> None:
    node.environment["ALIQUOT_AGENT_KERNEL_LOG"] = str(node.directory / "nothing")
    await grant(node, coordinator)
    await coordinator.until(lambda: "kernel-log" in conditions(coordinator), "it is told")

"""Real processes on simulated devices: who is over is stopped, everybody else lives."""

from __future__ import annotations

import asyncio
import signal
import sys

from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import (
    GIB,
    ROOT,
    SECRET,
    Node,
    auntil,
    burn_command,
    desired,
    ended_by,
    obstinate_command,
    wait_for_output,
)

ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE


async def grant(
    node: Node, coordinator: Coordinator, *slices: agent_pb2.DesiredSlice, flags: tuple[str, ...] = ()
) -> None:
    """An agent with these slices active."""
    await asyncio.to_thread(node.start, coordinator.address, *flags)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot came")
    coordinator.desire(*slices, full=True)
    for piece in slices:
        await coordinator.until_status(piece.slice_id, ACTIVE)


async def test_over_limit_is_stopped_while_neighbours_and_foreigners_live(node: Node, coordinator: Coordinator) -> None:
    device = node.uuids[0]
    mine = desired(device, slice_id="l-1.1.0", lease_id="l-1")
    await grant(node, coordinator, mine, desired(device, slice_id="l-2.1.0", lease_id="l-2"))
    report = coordinator.last("l-1.1.0")
    assert report is not None
    assert report.tier == types_pb2.TIER_WATCHDOG
    neighbour = await asyncio.to_thread(node.burn, "2Gi", lease_id="l-2")
    stranger = await asyncio.to_thread(node.foreign_burn, "8Gi", 0)
    greedy = await asyncio.to_thread(node.overrun, "6Gi", lease_id="l-1")

    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and not piece.pids, "its memory is free")
    assert neighbour.poll() is None
    assert stranger.poll() is None
    assert '"signal":"SIGTERM"' in node.log
    assert f'"pid":{greedy.pid}' in node.log


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0], memory_bytes=2 * GIB))
    job = node.job(*obstinate_command("4Gi"))
    assert await asyncio.to_thread(ended_by, job, signal.SIGKILL)
    assert '"signal":"SIGTERM"' in node.log


async def test_of_several_processes_only_as_many_as_needed_go_the_largest_first(
    node: Node, coordinator: Coordinator
) -> None:
    # Each process also pays for its context, which is part of what its lease holds.
    await grant(node, coordinator, desired(node.uuids[0], memory_bytes=8 * GIB))
    small = await asyncio.to_thread(node.burn, "1Gi")
    middle = await asyncio.to_thread(node.burn, "3Gi")
    large = await asyncio.to_thread(node.overrun, "5Gi")
    assert await asyncio.to_thread(ended_by, large, signal.SIGTERM)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and len(piece.pids) == 2, "two are left")
    assert small.poll() is None
    assert middle.poll() is None


async def test_memory_that_is_not_available_is_unknown_and_never_a_reason(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0], memory_bytes=2 * GIB))
    node.scenario.set(0, processes_memory_unknown=1)
    job = await asyncio.to_thread(node.burn, "6Gi")
    node.scenario.set(0, processes_memory_unknown=1)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and job.pid in piece.pids, "it is seen")
    sampled = node.status().devices[0].telemetry.sampled_ms
    await auntil(lambda: node.status().devices[0].telemetry.sampled_ms > sampled + 500, "several polls have passed")
    piece = node.slice_of("l-1.1.0")
    assert piece is not None
    assert not piece.HasField("observed_bytes")
    assert job.poll() is None


async def test_a_process_on_a_device_it_has_not_leased_is_stopped(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]), desired(node.uuids[1], slice_id="l-2.1.0", lease_id="l-2"))
    neighbour = await asyncio.to_thread(node.burn, "1Gi", lease_id="l-2")
    stray = node.job("env", f"CUDA_VISIBLE_DEVICES={node.uuids[1]}", *burn_command("1Gi"))
    assert await asyncio.to_thread(ended_by, stray, signal.SIGTERM)
    assert neighbour.poll() is None
    assert "has no slice on this device" in node.log


TWO_LEASES = """
import os, sys, time
from aliquot.simgpu.cuda import Cuda
from aliquot.v1 import local_pb2
from tests.agent.localclient import ask
request = local_pb2.AttachRequest(lease_id="l-2", secret=sys.argv[2])
assert ask(sys.argv[1], local_pb2.LocalRequest(attach=request)).HasField("attach")
if os.fork() == 0:
    time.sleep(0.1)
first = Cuda(0)
first.allocate(1 << 30)
second = Cuda(1)
second.allocate(1 << 30)
print("holds", flush=True)
time.sleep(120)
"""


async def test_a_process_and_its_children_may_hold_two_leases(node: Node, coordinator: Coordinator) -> None:
    first, second = node.uuids
    await grant(node, coordinator, desired(first), desired(second, slice_id="l-2.1.0", lease_id="l-2"))
    command = (sys.executable, "-c", TWO_LEASES, str(node.socket), SECRET)
    job = node.job("env", f"CUDA_VISIBLE_DEVICES={first},{second}", f"PYTHONPATH={ROOT}", *command)
    await asyncio.to_thread(wait_for_output, job, b"holds")
    await asyncio.to_thread(wait_for_output, job, b"holds")
    for slice_id in ("l-1.1.0", "l-2.1.0"):
        await auntil(
            lambda slice_id=slice_id: (piece := node.slice_of(slice_id)) is not None and len(piece.pids) == 2,  # type: ignore[misc]
            f"both are counted against {slice_id}",
        )
    sampled = node.status().devices[1].telemetry.sampled_ms
    await auntil(lambda: node.status().devices[1].telemetry.sampled_ms > sampled + 800, "several polls have passed")
    assert job.poll() is None
    assert "SIGTERM" not in node.log
    coordinator.desire(desired(first, stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert await asyncio.to_thread(ended_by, job, signal.SIGTERM), "whoever belongs to both ends with the first"
    await auntil(lambda: (piece := node.slice_of("l-2.1.0")) is not None and not piece.pids, "its child as well")


async def test_a_whole_device_is_not_policed(node: Node, coordinator: Coordinator) -> None:
    whole = desired(node.uuids[0], share_milli=1000, memory_bytes=2 * GIB, min_tier=types_pb2.TIER_DRIVER)
    await grant(node, coordinator, whole)
    report = coordinator.last(whole.slice_id)
    assert report is not None
    assert report.tier == types_pb2.TIER_NONE
    job = await asyncio.to_thread(node.burn, "6Gi")
    await auntil(
        lambda: (piece := node.slice_of(whole.slice_id)) is not None and piece.observed_bytes > 6 * GIB,
        "it is observed",
    )
    assert job.poll() is None


async def test_children_of_an_attached_process_belong_to_the_lease(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0], memory_bytes=2 * GIB))
    script = f"{' '.join(burn_command('4Gi'))}; echo over $?"
    job = node.job("sh", "-c", script)
    output = await asyncio.to_thread(wait_for_output, job, b"over")
    assert b"over 143" in output, "the child was stopped, its parent holds no device memory and lives"


async def test_a_minimum_tier_that_cannot_be_had_is_refused_with_the_reason(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)
    coordinator.desire(desired(node.uuids[0], min_tier=types_pb2.TIER_DRIVER))
    report = await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert report.reason == "TIER_UNAVAILABLE"
    assert node.slice_of("l-1.1.0") is None


async def test_where_cgroups_are_not_wanted_sessions_and_ancestry_do(node: Node, coordinator: Coordinator) -> None:
    device = node.uuids[0]
    mine = desired(device, slice_id="l-1.1.0", lease_id="l-1")
    theirs = desired(device, slice_id="l-2.1.0", lease_id="l-2")
    await grant(node, coordinator, mine, theirs, flags=("--containment", "process_group"))
    neighbour = await asyncio.to_thread(node.burn, "2Gi", lease_id="l-2")
    # Two forks away, and its parents are gone: only the session is left to tell whose it is.
    script = f"({' '.join(burn_command('6Gi'))} & ) & sleep 60"
    greedy = node.job("sh", "-c", script)
    await auntil(lambda: '"signal":"SIGTERM"' in node.log, "the orphan is found and told to end")
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and not piece.pids, "the orphan is stopped")
    assert greedy.poll() is None
    assert neighbour.poll() is None
    of_this_machine = {"serving", "namespace", "kernel-log"}
    wrong = [each for each in coordinator.snapshots[-1].node.conditions if each.subject not in of_this_machine]
    assert not wrong, "it was asked for: nothing is wrong"

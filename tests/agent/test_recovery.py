"""An agent that dies at the worst moments, or meets a coordinator that is not what it was."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, burn_command, desired, ended_by, wait_for_output
from tests.agent.test_enforcement_on_processes import grant

ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE
CRASHING = ("-m", "tests.agent.crashing_agent")


async def test_kill9_then_restart_takes_up_slices_processes_and_limits(node: Node, coordinator: Coordinator) -> None:
    # What a process holds beyond its limit counts as foreign: the greedy one has a device of its own.
    await grant(node, coordinator, desired(node.uuids[0]), desired(node.uuids[1], slice_id="l-2.1.0", lease_id="l-2"))
    job = await asyncio.to_thread(node.burn, "1Gi")
    late = f"echo attached; sleep 1; exec {' '.join(burn_command('6Gi'))}"
    greedy = node.job("sh", "-c", late, lease_id="l-2")
    await asyncio.to_thread(wait_for_output, greedy, b"attached")
    node_id = coordinator.hellos[-1].node_id
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a snapshot after the restart")
    snapshot = coordinator.snapshots[-1]
    assert coordinator.hellos[-1].node_id == node_id
    assert {piece.slice_id: piece.status for piece in snapshot.slices} == {"l-1.1.0": ACTIVE, "l-2.1.0": ACTIVE}
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and job.pid in piece.pids, "it is the lease's")
    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM), "the limit holds after the restart"
    assert job.poll() is None
    assert snapshot.node.devices[0].foreign_bytes == 0


@pytest.mark.parametrize("point", ["persisted", "limit-set"])
async def test_killed_between_writing_down_and_telling(node: Node, coordinator: Coordinator, point: str) -> None:
    node.environment["TEST_CRASH_AT"] = point
    await asyncio.to_thread(node.start, coordinator.address, program=CRASHING)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    coordinator.desire(desired(node.uuids[0]), full=True)
    assert node.agent is not None
    assert await asyncio.to_thread(node.agent.wait, 30) == -signal.SIGKILL
    assert coordinator.last("l-1.1.0") is None
    assert [path.name for path in (node.state_dir / "slices").iterdir()] == ["l-1.1.0.record"]
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until_status("l-1.1.0", ACTIVE)
    assert coordinator.snapshots[-1].slices[0].memory_bytes == 4 * GIB


def _said_unhealthy(coordinator: Coordinator) -> list[str]:
    devices = [device for delta in coordinator.deltas for device in delta.devices]
    return [device.health_reason for device in devices if device.HasField("healthy") and not device.healthy]


async def test_a_full_disk_refuses_new_slices_and_still_stops_old_ones(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    node.kill9()
    node.environment["TEST_CRASH_AT"] = "full"
    await asyncio.to_thread(node.start, coordinator.address, program=CRASHING)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a snapshot after the restart")
    new = desired(node.uuids[0], slice_id="l-2.1.0", lease_id="l-2")
    coordinator.desire(desired(node.uuids[0], stop=True), new)
    report = await coordinator.until_status("l-2.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert report.reason == "CHECKPOINT"
    assert "No space left" in report.detail
    await coordinator.until(lambda: bool(_said_unhealthy(coordinator)), "its devices take no new leases for a while")
    assert "can't be written down" in _said_unhealthy(coordinator)[0]
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert job.wait(timeout=30) == -signal.SIGTERM


async def test_a_damaged_record_is_set_aside_and_the_slice_is_taken_up_again_with_its_processes(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    node.kill9()
    record = node.state_dir / "slices" / "l-1.1.0.record"
    record.write_bytes(record.read_bytes()[:-20])
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a snapshot after the restart")
    assert not coordinator.snapshots[-1].slices
    assert "could not be read" in node.log
    coordinator.desire(desired(node.uuids[0]), full=True)
    await coordinator.until_status("l-1.1.0", ACTIVE)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and job.pid in piece.pids, "found again")
    assert job.poll() is None


async def test_stale_epochs_are_refused(node: Node, coordinator: Coordinator) -> None:
    coordinator.leader_epoch = 5
    await grant(node, coordinator, desired(node.uuids[0], epoch=3, slice_id="l-1.3.0"))
    stop = desired(node.uuids[0], epoch=3, slice_id="l-1.3.0", stop=True)
    coordinator.desire(stop, leader_epoch=4)
    coordinator.desire(stop, session_epoch=coordinator.session_epoch + 1)
    coordinator.desire(desired(node.uuids[0], epoch=2, slice_id="l-1.3.0", stop=True))
    coordinator.desire(desired(node.uuids[1], epoch=2, slice_id="l-1.2.0"))
    await auntil(lambda: node.log.count("STALE_LEASE") >= 2, "all four were judged")
    assert "STALE_LEADER" in node.log
    assert "STALE_SESSION" in node.log
    assert node.slice_of("l-1.3.0") is not None
    assert node.slice_of("l-1.2.0") is None
    # The fence survives a restart: a coordinator that leads in a lower epoch is not even talked to.
    node.kill9()
    coordinator.leader_epoch = 4
    sessions, snapshots = coordinator.sessions, len(coordinator.snapshots)
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: coordinator.sessions > sessions, "it tried")
    await auntil(lambda: "this node has obeyed 5" in node.log, "it refused")
    assert len(coordinator.snapshots) == snapshots
    assert coordinator.hellos[-1].leader_epoch == 5


async def test_a_leader_is_fenced_from_the_moment_a_later_one_was_met(node: Node, coordinator: Coordinator) -> None:
    later = await Coordinator(leader_epoch=9).start()
    await asyncio.to_thread(node.start, later.address)
    await later.until(lambda: bool(later.snapshots), "the later leader is met; it orders nothing")
    await later.stop()
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await auntil(lambda: "this node has obeyed 9" in node.log, "the earlier one is refused")
    assert not coordinator.snapshots


async def test_a_coordinator_that_forgot_everything_ends_nothing(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    coordinator.end_session()
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a second session")
    coordinator.desire(full=True)
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and piece.status == "QUARANTINED", "set apart")
    assert job.poll() is None
    other = node.job("true")
    assert await asyncio.to_thread(other.wait, 30) == 9, "it takes no new processes"
    full = desired(node.uuids[0], slice_id="l-9.1.0", lease_id="l-9", share_milli=900)
    coordinator.desire(full)
    report = await coordinator.until_status("l-9.1.0", agent_pb2.SLICE_STATUS_FAILED)
    assert report.reason == "OVERCOMMITTED", "what it holds still counts"
    coordinator.desire(desired(node.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert job.wait(timeout=30) == -signal.SIGTERM


async def test_without_a_coordinator_jobs_go_on_under_their_limits(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]), desired(node.uuids[1], slice_id="l-2.1.0", lease_id="l-2"))
    job = await asyncio.to_thread(node.burn, "1Gi")
    await coordinator.stop()
    greedy = await asyncio.to_thread(node.overrun, "6Gi", lease_id="l-2")
    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM)
    assert job.poll() is None
    sessions = coordinator.sessions
    await coordinator.start(int(coordinator.address.rpartition(":")[2]))
    await coordinator.until(lambda: coordinator.sessions > sessions, "it came back by itself")
    assert job.poll() is None


async def test_sigterm_leaves_reservations_and_processes(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = await asyncio.to_thread(node.burn, "1Gi")
    assert await asyncio.to_thread(node.terminate) == 0
    assert job.poll() is None
    assert not node.socket.exists()
    assert [path.name for path in (node.state_dir / "slices").iterdir()] == ["l-1.1.0.record"]


async def test_a_second_agent_on_the_same_state_is_refused(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    second = Node(tmp_path / "second", simgpu.Scenario(node.scenario_path), node.scenario_path)
    second.directory.mkdir()
    second.spawn(coordinator.address, "--state-dir", str(node.state_dir))
    assert second.agent is not None
    assert await asyncio.to_thread(second.agent.wait, 30) == 1
    assert "another agent is running" in second.log
    second.close()

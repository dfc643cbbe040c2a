"""Stopping slices: the stop signal, grace, SIGKILL, then nothing left; nobody else is touched."""

from __future__ import annotations

import asyncio
import signal

import pytest

from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, burn_command, desired, ended_by, obstinate_command, wait_for_output
from tests.agent.test_enforcement_on_processes import grant

GONE = agent_pb2.SLICE_STATUS_GONE
ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE


async def test_a_slice_without_processes_is_gone_at_once_and_settled(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    coordinator.desire(desired(node.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", GONE)
    assert node.slice_of("l-1.1.0") is None
    assert not list((node.state_dir / "slices").iterdir())
    # Until it is settled it is told again with every snapshot.
    coordinator.end_session()
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a second session")
    assert [piece.slice_id for piece in coordinator.snapshots[-1].slices] == ["l-1.1.0"]
    coordinator.desire(settled=("l-1.1.0",), full=True)
    coordinator.send(agent_pb2.CoordinatorMessage(snapshot_request=agent_pb2.SnapshotRequest(reason="test")))
    await coordinator.until(lambda: len(coordinator.snapshots) == 3, "a third snapshot")
    assert not coordinator.snapshots[-1].slices


async def test_processes_are_asked_then_killed_and_neighbours_live(node: Node, coordinator: Coordinator) -> None:
    device = node.uuids[0]
    theirs = desired(device, slice_id="l-2.1.0", lease_id="l-2")
    await grant(node, coordinator, desired(device, grace_ms=700), theirs)
    neighbour = await asyncio.to_thread(node.burn, "1Gi", lease_id="l-2")
    polite = await asyncio.to_thread(node.burn, "1Gi")
    obstinate = node.job(*obstinate_command("1Gi"))
    await asyncio.to_thread(wait_for_output, obstinate, b"holds")
    idle = node.job("sh", "-c", "echo holds; exec sleep 120")
    await asyncio.to_thread(wait_for_output, idle, b"holds")
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and len(piece.pids) == 2, "both are seen")
    coordinator.desire(desired(device, stop=True, grace_ms=700, reason="PREEMPTED"))
    await coordinator.until_status("l-1.1.0", GONE)
    assert polite.wait(timeout=30) == -signal.SIGTERM
    assert idle.wait(timeout=30) == -signal.SIGTERM, "processes without device memory belong to the lease too"
    assert obstinate.wait(timeout=30) == -signal.SIGKILL
    assert neighbour.poll() is None
    statuses = [report.status for report in coordinator.reports if report.slice_id == "l-1.1.0"]
    assert agent_pb2.SLICE_STATUS_STOPPING in statuses
    assert "PREEMPTED" in node.log


@pytest.mark.parametrize(("stop_signal", "sent"), [("USR1", signal.SIGUSR1), ("NEWER", signal.SIGTERM)])
async def test_processes_are_told_by_the_stop_signal_of_their_lease(
    node: Node, coordinator: Coordinator, stop_signal: str, sent: signal.Signals
) -> None:
    """Or plainly, where the coordinator knows one that this agent does not."""
    device = node.uuids[0]
    await grant(node, coordinator, desired(device, grace_ms=60_000, stop_signal=stop_signal))
    name = sent.name.removeprefix("SIG")
    saving = node.job("sh", "-c", f"trap 'exit 7' {name}; echo holds; while :; do sleep 0.05; done")
    await asyncio.to_thread(wait_for_output, saving, b"holds")
    coordinator.desire(desired(device, stop=True, grace_ms=60_000, stop_signal=stop_signal))
    await coordinator.until_status("l-1.1.0", GONE)
    assert saving.wait(timeout=30) == 7
    assert f'"signal":"{sent.name}"' in node.log


async def test_a_reprieve_lets_those_live_who_are_still_there(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    obstinate = node.job(*obstinate_command("1Gi"))
    await asyncio.to_thread(wait_for_output, obstinate, b"holds")
    coordinator.desire(desired(node.uuids[0], stop=True, grace_ms=60_000))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_STOPPING)
    await auntil(lambda: '"signal":"SIGTERM"' in node.log, "it was asked to end")
    coordinator.desire(desired(node.uuids[0]))
    await coordinator.until_status("l-1.1.0", ACTIVE)
    coordinator.desire(desired(node.uuids[0], stop=True, grace_ms=100))
    await coordinator.until_status("l-1.1.0", GONE)
    assert await asyncio.to_thread(ended_by, obstinate, signal.SIGKILL)


async def test_a_process_tree_that_keeps_forking_is_ended_whole(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0], grace_ms=200))
    forker = node.job("sh", "-c", "trap '' TERM; echo holds; while :; do sleep 0.01 & sleep 0.02; done")
    await asyncio.to_thread(wait_for_output, forker, b"holds")
    coordinator.desire(desired(node.uuids[0], stop=True, grace_ms=200))
    await coordinator.until_status("l-1.1.0", GONE)
    assert forker.wait(timeout=30) == -signal.SIGKILL


async def test_members_of_a_gang_on_one_device_are_told_apart(node: Node, coordinator: Coordinator) -> None:
    device = node.uuids[0]
    first = desired(device, slice_id="l-1.1.0", member=0, memory_bytes=3 * GIB)
    second = desired(device, slice_id="l-1.1.1", member=1, memory_bytes=3 * GIB)
    await grant(node, coordinator, first, second)
    one = await asyncio.to_thread(node.burn, "2Gi", member=0)
    two = await asyncio.to_thread(node.overrun, "4Gi", member=1)
    assert await asyncio.to_thread(ended_by, two, signal.SIGTERM)
    assert one.poll() is None
    coordinator.desire(desired(device, slice_id="l-1.1.1", member=1, stop=True))
    await coordinator.until_status("l-1.1.1", GONE)
    assert one.poll() is None


async def test_a_new_grant_of_the_lease_is_not_hurt_by_the_end_of_the_old_one(
    node: Node, coordinator: Coordinator
) -> None:
    old, new = desired(node.uuids[0], slice_id="l-1.1.0"), desired(node.uuids[1], slice_id="l-1.2.0", epoch=2)
    await grant(node, coordinator, old)
    before = node.job(*obstinate_command("1Gi"))
    await asyncio.to_thread(wait_for_output, before, b"holds")
    coordinator.desire(desired(node.uuids[0], slice_id="l-1.1.0", stop=True, grace_ms=1_500), new)
    await coordinator.until_status("l-1.2.0", ACTIVE)
    after = await asyncio.to_thread(node.burn, "1Gi")
    await coordinator.until_status("l-1.1.0", GONE)
    assert before.wait(timeout=30) == -signal.SIGKILL
    assert after.poll() is None


async def test_of_a_member_that_loses_one_of_two_devices_only_who_uses_it_goes(
    node: Node, coordinator: Coordinator
) -> None:
    kept, lost = desired(node.uuids[0], slice_id="l-1.1.0"), desired(node.uuids[1], slice_id="l-1.1.1")
    await grant(node, coordinator, kept, lost)
    on_kept = await asyncio.to_thread(node.burn, "1Gi", "--device", "0")
    on_lost = node.job(*burn_command("1Gi", "--device", "1"))
    await asyncio.to_thread(wait_for_output, on_lost, b"holds")
    coordinator.desire(desired(node.uuids[1], slice_id="l-1.1.1", stop=True))
    await coordinator.until_status("l-1.1.1", GONE)
    assert on_lost.wait(timeout=30) == -signal.SIGTERM
    assert on_kept.poll() is None

"""Leases that are served: the agent starts a process for each member, and the slice is active once it answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from aliquot.agent.hosting.base import valid_endpoint
from aliquot.agent.processes import proc as processes
from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil
from tests.agent.serving import ask, install, pid_of, remote
from tests.agent.test_enforcement_on_processes import grant

ACTIVE, GONE, FAILED = (
    agent_pb2.SLICE_STATUS_ACTIVE,
    agent_pb2.SLICE_STATUS_GONE,
    agent_pb2.SLICE_STATUS_FAILED,
)


@pytest.fixture
def serving(node: Node, tmp_path: Path) -> Node:
    """A node on which a service is installed."""
    return install(node, tmp_path)


async def test_a_slice_is_active_once_its_process_answers_and_names_the_endpoint(
    serving: Node, coordinator: Coordinator
) -> None:
    await grant(serving, coordinator)
    assert list(coordinator.snapshots[0].node.serves) == [types_pb2.SERVE_REMOTE, types_pb2.SERVE_CUDA]
    coordinator.desire(remote(serving.uuids[0]))
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    told = await asyncio.to_thread(ask, report.endpoint)
    assert told["ALIQUOT_LEASE_ID"] == "l-1"
    assert told["CUDA_VISIBLE_DEVICES"] == serving.uuids[0]
    assert [r.status for r in coordinator.reports if r.slice_id == "l-1.1.0"] == [ACTIVE], "not before"


async def test_one_process_serves_all_slices_of_a_member(serving: Node, coordinator: Coordinator) -> None:
    first, second = serving.uuids
    await grant(serving, coordinator, remote(first), remote(second, slice_id="l-1.1.1"))
    one, other = coordinator.last("l-1.1.0"), coordinator.last("l-1.1.1")
    assert one is not None
    assert other is not None
    assert one.endpoint == other.endpoint
    assert (await asyncio.to_thread(ask, one.endpoint))["CUDA_VISIBLE_DEVICES"] == f"{first},{second}"


async def test_its_process_is_the_leases_and_ends_with_it(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    report = coordinator.last("l-1.1.0")
    assert report is not None
    told = await asyncio.to_thread(ask, report.endpoint)
    pid = pid_of(told)
    coordinator.desire(remote(serving.uuids[0], stop=True, grace_ms=20_000))
    await coordinator.until_status("l-1.1.0", GONE)
    assert processes.key_of(pid) is None
    assert (tmp_path / "stopped").exists(), "it was asked, not killed"
    assert not await asyncio.to_thread(os.path.exists, str(told["HOME"]))


async def test_it_is_held_by_the_tier_like_any_process(serving: Node, coordinator: Coordinator) -> None:
    serving.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "preload"
    await grant(serving, coordinator, remote(serving.uuids[0]))
    report = coordinator.last("l-1.1.0")
    assert report is not None
    assert report.tier == types_pb2.TIER_PRELOAD
    told = await asyncio.to_thread(ask, report.endpoint)
    assert "libaliquot_preload" in str(told["LD_PRELOAD"])


async def test_an_agent_that_starts_again_finds_it_serving(serving: Node, coordinator: Coordinator) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    before = coordinator.last("l-1.1.0")
    assert before is not None
    pid = (await asyncio.to_thread(ask, before.endpoint))["pid"]
    serving.kill9()
    await asyncio.to_thread(serving.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a second session")
    coordinator.desire(remote(serving.uuids[0]), full=True)

    def told() -> str:
        found = [piece.endpoint for shot in coordinator.snapshots[1:] for piece in shot.slices]
        found += [report.endpoint for report in coordinator.reports if report.slice_id == "l-1.1.0"]
        return found[-1] if found else ""

    await coordinator.until(lambda: told() == before.endpoint, "the same endpoint is told")
    assert (await asyncio.to_thread(ask, before.endpoint))["pid"] == pid


async def test_one_that_dies_is_started_again(serving: Node, coordinator: Coordinator) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    before = coordinator.last("l-1.1.0")
    assert before is not None
    os.kill(pid_of(await asyncio.to_thread(ask, before.endpoint)), signal.SIGKILL)
    told = await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_PENDING)
    assert "ended by SIGKILL" in told.detail
    after = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert (await asyncio.to_thread(ask, after.endpoint))["ALIQUOT_LEASE_ID"] == "l-1"


async def test_one_that_died_is_forgotten_and_what_attached_itself_is_not(
    serving: Node, coordinator: Coordinator
) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    first = coordinator.last("l-1.1.0")
    assert first is not None
    dead = pid_of(await asyncio.to_thread(ask, first.endpoint))
    job = serving.job("sleep", "120")
    await auntil(lambda: job.pid in serving.attached(), "the job is attached")
    assert dead in serving.attached()
    os.kill(dead, signal.SIGKILL)
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_PENDING)
    again = await coordinator.until_status("l-1.1.0", ACTIVE)
    now = pid_of(await asyncio.to_thread(ask, again.endpoint))
    assert {dead, now, job.pid} & set(serving.attached()) == {now, job.pid}


async def test_one_that_hangs_is_ended_and_started_again(serving: Node, coordinator: Coordinator) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    before = coordinator.last("l-1.1.0")
    assert before is not None
    hung = pid_of(await asyncio.to_thread(ask, before.endpoint))
    attached = serving.job("sleep", "120")
    os.kill(hung, signal.SIGSTOP)
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_PENDING)
    after = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert (await asyncio.to_thread(ask, after.endpoint))["pid"] != hung
    assert processes.key_of(hung) is None
    assert attached.poll() is None, "what attached itself goes on"


async def test_one_that_can_not_start_fails_the_slice_and_leaves_nothing(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    await grant(serving, coordinator)
    coordinator.desire(remote(serving.uuids[0]))
    report = await coordinator.until_status("l-1.1.0", FAILED)
    assert report.reason == "HOST_FAILED"
    assert "the framework is not there" in report.detail
    await auntil(lambda: serving.slice_of("l-1.1.0") is None, "nothing is held")


async def test_without_a_service_nothing_is_offered_and_the_order_fails(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    assert not coordinator.snapshots[0].node.serves
    coordinator.desire(remote(node.uuids[0], memory_bytes=2 * GIB))
    report = await coordinator.until_status("l-1.1.0", FAILED)
    assert report.reason == "HOST_FAILED"


async def test_a_stop_does_not_wait_for_a_process_that_is_starting(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "slow").touch()
    await grant(serving, coordinator)
    coordinator.desire(remote(serving.uuids[0]))
    await auntil(lambda: '"message":"serving"' in serving.log, "it was started")
    coordinator.desire(remote(serving.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", GONE)
    assert coordinator.last("l-1.1.0").reason == ""  # type: ignore[union-attr]


async def test_a_limit_that_is_lost_is_set_again_and_its_process_goes_on(
    serving: Node, coordinator: Coordinator
) -> None:
    serving.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "preload"
    await grant(serving, coordinator, remote(serving.uuids[0]))
    before = coordinator.last("l-1.1.0")
    assert before is not None
    told = await asyncio.to_thread(ask, before.endpoint)
    shutil.rmtree(serving.state_dir.with_name("state-enforcement") / "preload")
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_PENDING)
    after = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert after.endpoint == before.endpoint
    assert (await asyncio.to_thread(ask, after.endpoint))["pid"] == told["pid"]


@pytest.mark.parametrize(
    ("text", "valid"),
    [("127.0.0.1:80", True), ("unix:/x", True), ("", False), ("a b", False), ("x" * 257, False), ("h\n", False)],
)
def test_what_counts_as_an_endpoint(text: str, valid: bool) -> None:
    assert valid_endpoint(text) is valid

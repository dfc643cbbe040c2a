"""Services that hang, end or can't start, and agents that were killed meanwhile: one process serves, and it is said why
none does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.asking import ask as ask_process
from aliquot.agent.hosting.restarts import FIRST_S, MAX_S, Restarts
from aliquot.agent.processes import proc as processes
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import ROOT, Node, auntil, wait_for_output
from tests.agent.serving import ask, install, pid_of, remote
from tests.agent.test_enforcement_on_processes import grant

PENDING, ACTIVE, FAILED = (
    agent_pb2.SLICE_STATUS_PENDING,
    agent_pb2.SLICE_STATUS_ACTIVE,
    agent_pb2.SLICE_STATUS_FAILED,
)


@pytest.fixture
def serving(node: Node, tmp_path: Path) -> Node:
    """A node on which a service is installed."""
    return install(node, tmp_path)


async def served(coordinator: Coordinator) -> agent_pb2.SliceReport:
    report = await coordinator.until_status("l-1.1.0", ACTIVE)
    assert report.endpoint
    return report


async def start_again(node: Node, coordinator: Coordinator, *named: agent_pb2.DesiredSlice) -> None:
    """Kill the agent, and start it on what it has left. The coordinator then names these slices."""
    sessions = len(coordinator.snapshots)
    if node.agent is not None and node.agent.poll() is None:
        node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) > sessions, "another session")
    coordinator.desire(*named, full=True)


@pytest.mark.parametrize(
    "containment", [pytest.param("auto", marks=pytest.mark.root("to make cgroups")), "process_group"]
)
async def test_one_that_hangs_while_the_agent_is_killed_is_ended_before_another_is_started(
    serving: Node, coordinator: Coordinator, tmp_path: Path, containment: str
) -> None:
    """With all that it had started, in whatever session; what attached itself goes on."""
    (tmp_path / "family").touch()
    serving.environment["ALIQUOT_AGENT_CONTAINMENT"] = containment
    await grant(serving, coordinator, remote(serving.uuids[0]))
    hung = pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint))
    key = processes.key_of(hung)
    assert key is not None
    attached = serving.job("sh", "-c", "echo attached; exec sleep 120")
    await asyncio.to_thread(wait_for_output, attached, b"attached")
    await auntil(lambda: len(serving.hosted()) == 3, "it has a child, and a grandchild that left")
    before = {each for pid in serving.hosted() if (each := processes.key_of(pid)) is not None}
    serving.kill9()
    (tmp_path / "family").unlink()
    os.kill(hung, signal.SIGSTOP)
    await start_again(serving, coordinator, remote(serving.uuids[0]))
    await coordinator.until(
        lambda: (last := coordinator.last("l-1.1.0")) is not None and last.status == ACTIVE, "it is served", 60
    )
    now = pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint))
    assert not processes.alive(key)
    assert now in serving.hosted()
    left = [each for each in before if processes.alive(each)]
    assert len(left) <= (0 if containment == "auto" else 1), "without a cgroup, what left all its relatives is foreign"
    assert attached.poll() is None


async def test_after_a_restart_one_that_can_not_be_started_is_tried_again_and_its_limit_stays(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    pid = pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint))
    job = await asyncio.to_thread(serving.burn, "1Gi")
    serving.kill9()
    (tmp_path / "broken").touch()
    os.kill(pid, signal.SIGKILL)
    await start_again(serving, coordinator, remote(serving.uuids[0]))

    def said() -> list[str]:
        report = coordinator.last("l-1.1.0")
        return [note for note in report.tier_notes if note.startswith("not served")] if report is not None else []

    await coordinator.until(lambda: any("next try after 4 s" in note for note in said()), "it is tried again")
    report = coordinator.last("l-1.1.0")
    assert report is not None
    assert report.status == PENDING
    assert report.tier, "its limit is in force"
    (note,) = said()
    assert "the framework is not there" in note
    assert note.isprintable(), "it comes from a tenant's process"
    assert len(note) <= 1024
    assert max(len(line) for line in serving.log.splitlines()) < 4096
    assert job.poll() is None
    (tmp_path / "broken").unlink()
    report = await served(coordinator)
    assert not [note for note in report.tier_notes if note.startswith("not served")]
    assert job.poll() is None


async def test_one_that_can_not_start_fails_the_slice_only_after_what_was_attached_has_ended(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "slow").touch()
    await grant(serving, coordinator)
    coordinator.desire(remote(serving.uuids[0]), remote(serving.uuids[1], slice_id="l-1.1.1"))
    await auntil(lambda: '"message":"serving"' in serving.log, "its service is starting")
    job = await asyncio.to_thread(serving.burn, "1Gi")
    (tmp_path / "broken").touch()
    (tmp_path / "slow").unlink()
    reports = [await coordinator.until_status(f"l-1.1.{index}", FAILED) for index in (0, 1)]
    assert job.wait(timeout=0) == -signal.SIGTERM, "it ended before its limit went"
    assert {report.reason for report in reports} == {"HOST_FAILED"}
    assert all("the framework is not there" in report.detail for report in reports)
    assert all(len(report.detail) <= 1024 and report.detail.isprintable() for report in reports)
    assert serving.log.count('"message":"serving"') == 1, "one try for all slices of a member"


async def test_one_that_does_not_answer_is_asked_to_end_first(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    old = pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint))
    (sock,) = serving.state_dir.with_name("state-enforcement").glob("hosts/*/socket")
    sock.unlink()
    await coordinator.until_status("l-1.1.0", PENDING)
    report = await served(coordinator)
    assert pid_of(await asyncio.to_thread(ask, report.endpoint)) != old
    assert (tmp_path / "stopped").exists(), "it ended in order"


async def test_a_quarantined_one_is_neither_ended_nor_started_again(serving: Node, coordinator: Coordinator) -> None:
    await grant(serving, coordinator, remote(serving.uuids[0]))
    pid = pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint))
    await start_again(serving, coordinator)
    await auntil(lambda: (it := serving.slice_of("l-1.1.0")) is not None and it.status == "QUARANTINED", "unknown")
    assert serving.hosted() == [pid]
    os.kill(pid, signal.SIGKILL)
    await coordinator.until(
        lambda: (last := coordinator.last("l-1.1.0")) is not None and any("take no new" in n for n in last.tier_notes),
        "it is said why nothing serves it",
    )
    assert not serving.hosted()
    assert "Traceback" not in serving.log
    coordinator.desire(remote(serving.uuids[0]), full=True)
    assert pid_of(await asyncio.to_thread(ask, (await served(coordinator)).endpoint)) != pid


async def test_one_that_computes_still_answers_the_agent(serving: Node, tmp_path: Path) -> None:
    """Its event loop stands still for an hour, and it is not taken for one that hangs."""
    (tmp_path / "busy").touch()
    folder = tmp_path / "member"
    folder.mkdir()
    program = [sys.executable, "-m", "aliquot.agent.hosting.program", "remote"]
    path = os.pathsep.join([serving.environment["PYTHONPATH"], str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    service = await asyncio.to_thread(subprocess.Popen, program, cwd=folder, env=environment)
    serving.jobs.append(service)
    endpoint = ""
    while not endpoint:
        assert service.poll() is None
        answer = await ask_process(folder, lambda pid: pid == service.pid)
        endpoint = answer.endpoint if answer is not None else ""
        await asyncio.sleep(0.02)
    await auntil((tmp_path / "computes").exists, "its event loop stands still")
    answer = await ask_process(folder, lambda pid: pid == service.pid)
    assert answer is not None
    assert answer.endpoint == endpoint
    assert await ask_process(folder, lambda pid: False) is None, "another process's answer counts for nothing"


async def test_what_an_agent_left_of_members_that_are_gone_is_removed(serving: Node, coordinator: Coordinator) -> None:
    hosts = serving.state_dir.with_name("state-enforcement") / "hosts"
    (hosts / "of-nobody").mkdir(parents=True)
    await grant(serving, coordinator, remote(serving.uuids[0]))
    assert [path.name for path in hosts.iterdir()] != []
    assert not (hosts / "of-nobody").exists()


def test_the_time_between_two_starts_grows_and_is_forgotten_once_it_serves() -> None:
    now = [100.0]
    restarts, holder = Restarts(lambda: now[0]), Holder("l-1", 1, 0)
    assert restarts.wait_s(holder) == 0, "the first start is at once"
    waits = []
    for _ in range(7):
        waits.append(restarts.ended(holder))
        assert restarts.wait_s(holder) == waits[-1]
        now[0] += waits[-1]
        assert restarts.wait_s(holder) == 0
        now[0] += 1
        assert restarts.wait_s(holder) == 0, "nobody waits a time below zero"
    assert waits == [FIRST_S, 4, 8, 16, 32, MAX_S, MAX_S]
    restarts.serves(holder)
    now[0] += MAX_S - 1
    restarts.serves(holder)
    assert restarts.ended(holder) == MAX_S, "it did not last"
    restarts.serves(holder)
    now[0] += MAX_S
    assert restarts.ended(holder) == FIRST_S
    restarts.forget(holder)
    assert restarts.wait_s(holder) == 0

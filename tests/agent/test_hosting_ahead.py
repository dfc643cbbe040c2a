"""Processes that wait for a lease: what one of them has when a lease has it, and when it has none."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from aliquot.agent.hosting.ahead import Waiting
from aliquot.agent.processes import proc as processes
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil
from tests.agent.serving import ask, install, pid_of, remote
from tests.agent.test_enforcement_on_processes import grant

ACTIVE, GONE = agent_pb2.SLICE_STATUS_ACTIVE, agent_pb2.SLICE_STATUS_GONE


@pytest.fixture
def serving(node: Node, tmp_path: Path) -> Node:
    """A node whose service has something to prepare."""
    (tmp_path / "prepares").touch()
    install(node, tmp_path).environment["ALIQUOT_AGENT_HOSTING_AHEAD"] = "true"
    return node


async def prepared(folder: Path, number: int = 1) -> list[int]:
    """The processes that have prepared, in order, once there are so many."""
    file = folder / "prepared"
    await auntil(lambda: file.exists() and len(file.read_text().splitlines()) >= number, "a process has prepared")
    return [int(line) for line in file.read_text().splitlines()]


async def served(coordinator: Coordinator, slice_id: str = "l-1.1.0") -> dict[str, object]:
    report = await coordinator.until_status(slice_id, ACTIVE)
    return await asyncio.to_thread(ask, report.endpoint)


@pytest.mark.parametrize("tier", ["watchdog", "preload"])
async def test_a_lease_gets_the_process_that_waited_with_all_that_a_fresh_one_has(
    serving: Node, coordinator: Coordinator, tmp_path: Path, tier: str
) -> None:
    serving.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = tier
    await grant(serving, coordinator)
    (waiting,) = await prepared(tmp_path)
    coordinator.desire(remote(serving.uuids[0], memory_bytes=2 * GIB))
    told = await served(coordinator)
    assert pid_of(told) == waiting
    assert told["ALIQUOT_LEASE_ID"] == "l-1"
    assert told["CUDA_VISIBLE_DEVICES"] == serving.uuids[0]
    assert told["ALIQUOT_TIER"] == tier
    home = str(told["HOME"])
    assert str(told["temporary"]).startswith(f"{home}/tmp/")
    assert told["oom_score_adj"] == 0
    if tier == "preload":
        assert told["memory_total"] == 2 * GIB, "the library that was loaded before has found the lease's limit"
        assert "l-1.1.0/libaliquot_preload" in str(told["LD_PRELOAD"]), "what it starts is held, too"
    coordinator.desire(remote(serving.uuids[0], stop=True))
    await coordinator.until_status("l-1.1.0", GONE)
    assert processes.key_of(waiting) is None
    assert not await asyncio.to_thread(os.path.exists, home)


async def test_no_process_serves_two_leases(serving: Node, coordinator: Coordinator, tmp_path: Path) -> None:
    serving.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "watchdog"
    await grant(serving, coordinator)
    await prepared(tmp_path)
    coordinator.desire(remote(serving.uuids[0]), remote(serving.uuids[1], slice_id="l-2.1.0", lease_id="l-2"))
    both = {pid_of(await served(coordinator, slice_id)) for slice_id in ("l-1.1.0", "l-2.1.0")}
    assert len(both) == 2, "the second one did not wait until another was ready"
    first, second = await prepared(tmp_path, 2)
    assert first in both
    assert second not in both, "it waits for the next lease"
    coordinator.desire(remote(serving.uuids[0], slice_id="l-3.1.0", lease_id="l-3"))
    assert pid_of(await served(coordinator, "l-3.1.0")) == second


@pytest.mark.parametrize(
    ("loaded", "variables", "fits"),
    [
        ({}, {"ALIQUOT_TIER": "watchdog"}, True),
        ({"LD_PRELOAD": "/proc/self/cwd/tier/held.so"}, {"LD_PRELOAD": "/run/l-1/held.so"}, True),
        ({"LD_PRELOAD": "/proc/self/cwd/tier/held.so"}, {}, False),
        ({}, {"LD_PRELOAD": "/run/l-1/held.so"}, False),
        ({"LD_LIBRARY_PATH": "/driver"}, {"LD_LIBRARY_PATH": "/other"}, False),
    ],
)
def test_what_is_loaded_at_a_start_decides_who_can_be_used(
    loaded: dict[str, str], variables: dict[str, str], fits: bool
) -> None:
    with subprocess.Popen(["true"]) as child:
        assert Waiting(child, Path(), 0, loaded).fits(variables) is fits


async def test_it_ends_with_the_agent_however_that_ends(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await grant(serving, coordinator)
    (waiting,) = await prepared(tmp_path)
    serving.kill9()
    await auntil(lambda: processes.key_of(waiting) is None, "nothing of it is left")


async def test_a_process_that_has_ended_is_missed_by_nobody(
    serving: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    await grant(serving, coordinator)
    (waiting,) = await prepared(tmp_path)
    process = processes.key_of(waiting)
    assert process is not None
    os.kill(waiting, signal.SIGKILL)
    await auntil(lambda: not processes.alive(process), "it has ended")
    coordinator.desire(remote(serving.uuids[0]))
    assert pid_of(await served(coordinator)) != waiting

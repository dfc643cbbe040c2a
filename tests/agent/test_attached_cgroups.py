"""Cgroups that somebody else made, attached to leases: who is in them is the lease's, from the first process on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.client import AttachRefused, Tier
from aliquot.client.local import CgroupAttachment, LocalAgent
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.foreign_cgroups import named, run_in, subtree
from tests.agent.harness import ROOT, Node, auntil, burn_command, desired, ended_by, wait_for_output
from tests.agent.test_enforcement_on_processes import grant
from tests.agent.test_local_socket import STRANGER_UID

pytestmark = pytest.mark.root("to make cgroups")


@pytest.fixture
def jobs() -> Iterator[Path]:
    with subtree("aliquot-test-jobs") as top:
        yield top


def made(top: Path, name: str) -> Path:
    path = top / name
    path.mkdir(parents=True)
    return path


async def attach(node: Node, cgroup: Path, lease_id: str = "l-1", member: int = 0, uid: int = 0) -> CgroupAttachment:
    agent = LocalAgent(node.socket)
    return await asyncio.to_thread(agent.attach_cgroup, lease_id, named(cgroup), member=member, uid=uid)


async def refused(node: Node, cgroup: str, lease_id: str = "l-1", member: int = 0) -> str:
    agent = LocalAgent(node.socket)
    with pytest.raises(AttachRefused) as caught:
        await asyncio.to_thread(agent.attach_cgroup, lease_id, cgroup, member=member)
    return caught.value.message


def burn_in(node: Node, cgroup: Path, memory: str, attached: CgroupAttachment) -> subprocess.Popen[bytes]:
    job = run_in(cgroup, burn_command(memory), {**node.base_environment(), **attached.environment})
    node.jobs.append(job)
    return job


async def test_who_is_born_in_it_is_the_leases(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    await grant(node, coordinator, desired(node.uuids[0]), desired(node.uuids[0], slice_id="l-2.1.0", lease_id="l-2"))
    pod = made(jobs, "pod1")
    attached = await attach(node, pod)
    assert attached.tier is Tier.WATCHDOG
    assert attached.environment["CUDA_VISIBLE_DEVICES"] == node.uuids[0]
    assert attached.slice_ids == ("l-1.1.0",)
    container = made(pod, "container")
    good = burn_in(node, container, "2Gi", attached)
    await asyncio.to_thread(wait_for_output, good, b"holds")
    await auntil(lambda: (piece := node.slice_of("l-1.1.0")) is not None and good.pid in piece.pids, "it is seen")
    found = node.slice_of("l-1.1.0")
    assert found is not None
    assert (list(found.cgroups), found.member, found.lease_epoch) == ([named(pod)], 0, 1)
    greedy = burn_in(node, container, "6Gi", attached)
    assert await asyncio.to_thread(ended_by, greedy, signal.SIGTERM), "it is held at what the lease has"
    assert good.poll() is None


async def test_it_survives_the_agent_and_goes_with_the_lease(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    piece = desired(node.uuids[0])
    await grant(node, coordinator, piece)
    pod = made(jobs, "pod1")
    attached = await attach(node, pod)
    job = burn_in(node, made(pod, "container"), "1Gi", attached)
    await asyncio.to_thread(wait_for_output, job, b"holds")
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "the new agent is connected")
    await auntil(lambda: (s := node.slice_of("l-1.1.0")) is not None and job.pid in s.pids, "it is known again")
    coordinator.desire(desired(node.uuids[0], stop=True), full=True)
    assert await asyncio.to_thread(ended_by, job, signal.SIGTERM)
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_GONE)
    assert (pod / "cgroup.procs").exists(), "who made it removes it"


async def test_the_driver_limits_it(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    node.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "driver,watchdog"
    await grant(node, coordinator, desired(node.uuids[0]))
    pod = made(jobs, "pod1")
    attached = await attach(node, pod)
    assert attached.tier is Tier.DRIVER
    job = burn_in(node, pod, "6Gi", attached)
    said = await asyncio.to_thread(job.communicate, timeout=30)
    assert job.returncode not in (0, -signal.SIGTERM), said
    assert b"refused 6Gi" in said[0], said


async def test_the_library_limits_it(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    node.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = "preload,watchdog"
    await grant(node, coordinator, desired(node.uuids[0]))
    attached = await attach(node, pod := made(jobs, "pod1"))
    assert attached.tier is Tier.PRELOAD
    assert list(attached.folders) == [str(Path(attached.environment["LD_PRELOAD"]).parent)]
    job = burn_in(node, made(pod, "container"), "6Gi", attached)
    said, _ = await asyncio.to_thread(job.communicate, timeout=30)
    assert b"refused 6Gi" in said, said


async def test_one_cgroup_a_member_and_one_member_a_cgroup(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    device = node.uuids[0]
    await grant(node, coordinator, desired(device), desired(device, slice_id="l-2.1.0", lease_id="l-2"))
    first, second = made(jobs, "pod1"), made(jobs, "pod2")
    await attach(node, first)
    await attach(node, first)
    assert "has another cgroup" in await refused(node, named(second))
    assert "belongs to lease l-1" in await refused(node, named(first), "l-2")
    first.rmdir()
    await attach(node, second)
    first.mkdir()
    assert "has another cgroup" in await refused(node, named(first)), "a new one of the same name is another one"
    found = node.slice_of("l-1.1.0")
    assert found is not None
    assert list(found.cgroups) == [named(second)]


async def test_what_can_not_be_attached(node: Node, coordinator: Coordinator, jobs: Path) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    pod = named(made(jobs, "pod1"))
    assert "has nothing on node" in await refused(node, pod, "l-9")
    assert "member 3 of lease l-1 is not" in await refused(node, pod, member=3)
    assert "there is no cgroup" in await refused(node, pod + "9")
    for bad in ("", "/", "pod1", f"{pod}/../pod1", f"{pod}/", "//x"):
        assert "is no cgroup" in await refused(node, bad)
    assert "is the agent's own" in await refused(node, "/aliquot"), "the agent's own"
    own = made(jobs, "with-the-agent")
    assert node.agent is not None
    (own / "cgroup.procs").write_text(str(node.agent.pid))
    assert "the agent, or init, is in" in await refused(node, named(own))
    found = node.slice_of("l-1.1.0")
    assert found is not None
    assert not found.cgroups


@pytest.mark.root("to act as several users")
async def test_only_root_may(open_node: Node, coordinator: Coordinator, jobs: Path) -> None:
    node = open_node
    await grant(node, coordinator, desired(node.uuids[0]))
    script = (
        "import sys\n"
        "from aliquot.v1 import local_pb2\n"
        "from tests.agent.localclient import ask, become\n"
        "become(sys.argv[3])\n"
        "r = local_pb2.AttachCgroupRequest(lease_id='l-1', cgroup=sys.argv[2])\n"
        "print(ask(sys.argv[1], local_pb2.LocalRequest(attach_cgroup=r)).error.reason)"
    )
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(node.socket), named(made(jobs, "pod1")), str(STRANGER_UID)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "NOT_PERMITTED"


async def test_without_cgroups_of_its_own_the_agent_attaches_none(
    node: Node, coordinator: Coordinator, jobs: Path
) -> None:
    await grant(node, coordinator, desired(node.uuids[0]), flags=("--containment", "process_group"))
    assert "cgroups can't be attached here" in await refused(node, named(made(jobs, "pod1")))

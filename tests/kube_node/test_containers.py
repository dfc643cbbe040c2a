"""Real containers, started by a real OCI runtime as the device plugin, or the driver of claims, told the kubelet: each
is held at its own lease's memory, and its neighbour on the same device is left alone.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path

import pytest

from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.protos import deviceplugin_pb2
from tests.agent.harness import auntil, burn_command, wait_for_output
from tests.kube_node import containers
from tests.kube_node.conftest import NODE, Place
from tests.kube_node.fake_kubelet import AdmittedPod
from tests.kube_node.test_claims import claimed
from tests.kube_node.test_pods import visible

pytestmark = pytest.mark.root("to start containers")

# Units with CDI in the other layout of cgroups are in `test_whole`.
WAYS = [
    ("preload,watchdog", "cdi", True),
    ("preload,watchdog", "mounts", False),
    ("preload,watchdog", "cdi", False, "dra"),
]


@pytest.fixture(autouse=True)
def runtime() -> None:
    containers.require()


async def placed(place: Place, name: str, lease_id: str) -> AdmittedPod:
    """A pod that may start its container `main`, by units or by a claim."""
    if place.settings.mode.value == "classic":
        return await place.bound(name, lease_id)
    pod, claim = await claimed(place, name, lease_id)
    devices = [deviceplugin_pb2.CDIDevice(name=each) for each in set(await place.kubelet.prepare_claim(claim))]
    pod.answers["main"] = deviceplugin_pb2.ContainerAllocateResponse(cdi_devices=devices)
    return pod


async def burning(
    place: Place, pod: AdmittedPod, memory: str, container: str = "main", *, own_pids: bool = False
) -> containers.Container:
    """A container whose program takes so much memory of its device."""
    extra = visible(place) if place.settings.injection.value == "mounts" else {}
    # What a driver shares with its processes is the only thing of the node that it may write, beside its lease's own.
    writable = [place.agent.scenario_path]
    return await place.kubelet.run_container(
        pod, container, burn_command(memory), writable=writable, own_pids=own_pids, **extra
    )


def pid_in(container: containers.Container, said: bytes) -> int:
    """The pid of the program in a container, which says it."""
    found = re.search(rb"burn\[(\d+)\]", said)
    assert found is not None, said
    return int(found[1])


def about(pid: int, name: str) -> str:
    """What the kernel says of a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


@pytest.mark.parametrize("place", WAYS, indirect=True, ids=lambda way: "-".join(map(str, way)))
async def test_a_container_is_held_and_its_neighbour_is_left_alone(place: Place) -> None:
    await place.lease("l-1")
    await place.lease("l-2")
    neighbour = await placed(place, "neighbour", "l-2")
    kept = await burning(place, neighbour, "3Gi")
    said = await asyncio.to_thread(wait_for_output, kept.process, b"] holds ")
    pid = pid_in(kept, said)
    greedy = await placed(place, "greedy", "l-1")
    refused = await burning(place, greedy, "6Gi")
    answer, _ = await asyncio.to_thread(refused.process.communicate, timeout=60)
    assert b"refused 6Gi" in answer, "beyond its part"
    assert refused.process.returncode == 3
    held = await burning(place, greedy, "3Gi")
    await asyncio.to_thread(wait_for_output, held.process, b"] holds ")
    assert kept.process.poll() is None
    cgroup = str(neighbour.cgroup).removeprefix(str(place.settings.cgroup_root))
    assert f"0::{cgroup}/" in about(pid, "cgroup"), "a container is in its pod's cgroup"
    assert f"CUDA_VISIBLE_DEVICES={place.agent.uuids[0]}" in about(pid, "environ")
    await auntil(lambda: (s := place.agent.slice_of("l-2.1.0")) is not None and pid in s.pids, "it is its lease's")
    place.kubelet.containers[0].end()
    await auntil(lambda: (s := place.agent.slice_of("l-2.1.0")) is not None and not s.pids, "it has gone")


async def test_containers_of_a_pod_with_pids_of_their_own_are_in_one_budget(place: Place) -> None:
    """In each of them the program is pid 1: by their pids nobody could tell them apart, nor whether one still lives."""
    await place.lease("l-1")
    pod = Pod(PodIdentity("default", "a", str(uuid.uuid4())), NODE, place.annotations("l-1"))
    await place.cluster.put(pod)
    admitted = await place.kubelet.admit("a", pod.identity.uid, {"main": 20, "beside": 5})
    first = await burning(place, admitted, "2Gi", own_pids=True)
    said = await asyncio.to_thread(wait_for_output, first.process, b"] holds ")
    assert pid_in(first, said) == 1
    second = await burning(place, admitted, "3Gi", "beside", own_pids=True)
    answer, _ = await asyncio.to_thread(second.process.communicate, timeout=60)
    assert b"burn[1] refused 3Gi" in answer
    third = await burning(place, admitted, "1Gi", "beside", own_pids=True)
    await asyncio.to_thread(wait_for_output, third.process, b"] holds ")
    first.end()
    fourth = await burning(place, admitted, "2Gi", own_pids=True)
    await asyncio.to_thread(wait_for_output, fourth.process, b"] holds ")

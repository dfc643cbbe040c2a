"""Pods from their admission to their end, on a node with a real agent, real cgroups and real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from aliquot.kube.node.core.resources import MEMORY_RESOURCE
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import Pod
from tests.agent.foreign_cgroups import hierarchy, run_in
from tests.agent.harness import GIB, auntil, burn_command, ended_by, until, wait_for_output
from tests.kube_node.conftest import NODE, Place
from tests.kube_node.fake_kubelet import AdmittedPod, Running, StartRefused

pytestmark = pytest.mark.root("to make cgroups")

WAYS = [("preload,watchdog", "cdi", False), ("preload,watchdog", "mounts", False), ("preload,watchdog", "cdi", True)]


async def holding(place: Place, pod: AdmittedPod, memory: str, container: str = "main", **variables: str) -> Running:
    started = await place.kubelet.run(pod, container, burn_command(memory), **variables)
    await asyncio.to_thread(wait_for_output, started.process, b"holds")
    return started


async def refused_memory(place: Place, pod: AdmittedPod, memory: str, container: str = "main", **more: str) -> bytes:
    started = await place.kubelet.run(pod, container, burn_command(memory), **more)
    said, _ = await asyncio.to_thread(started.process.communicate, timeout=30)
    started.cgroup.rmdir()
    return said


def environment_of(container: Running) -> list[str]:
    path = Path(f"/proc/{container.process.pid}/environ")
    until(lambda: bool(path.read_text()), "it shows what it was started with, which it does not while it begins")
    return path.read_text().split("\0")


def visible(place: Place, device: int = 0) -> dict[str, str]:
    """What a pod has from its annotations where the runtime injects nothing."""
    return {"CUDA_VISIBLE_DEVICES": place.agent.uuids[device]}


@pytest.mark.parametrize("place", WAYS, indirect=True, ids=lambda way: "-".join(map(str, way)))
async def test_a_container_is_held_at_its_part(place: Place) -> None:
    assert place.kubelet.allocatable == 200
    await auntil(lambda: place.cluster.node is not None and MEMORY_RESOURCE in place.cluster.node.capacity, "memory")
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    extra = visible(place) if place.settings.injection.value == "mounts" else {}
    assert b"refused 6Gi" in await refused_memory(place, pod, "6Gi", **extra)
    job = await holding(place, pod, "2Gi", **extra)
    await place.cluster.update(pod.uid, container_ids=(f"containerd://{job.id}",), phase="Running")
    said = await place.condition(pod, reason="Preload")
    assert said == f"True: 0.25 of {place.agent.uuids[0]} with 4096Mi, held by preload"
    await auntil(lambda: (s := place.agent.slice_of("l-1.1.0")) is not None and job.process.pid in s.pids, "seen")
    place.audit()


@pytest.mark.parametrize("place", [("watchdog", "cdi", False)], indirect=True)
async def test_the_watchdog_holds_a_container_too(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    greedy = await place.kubelet.run(pod, "main", burn_command("6Gi"))
    assert await asyncio.to_thread(ended_by, greedy.process, signal.SIGTERM)
    assert (await place.condition(pod, reason="Watchdog")).startswith("True")


async def test_forty_on_one_node(place: Place) -> None:
    await place.leases_of({f"l-{n}": (n % 2, 50, GIB) for n in range(40)})
    pods = [await place.bound(f"p{n}", f"l-{n}", units=5) for n in range(40)]
    before = place.kubelet.asked
    started = await asyncio.gather(*(place.kubelet.run(pod, "main", ["sleep", "60"]) for pod in pods))
    assert place.kubelet.refused == 0
    assert place.kubelet.asked - before <= 3, "questions to the kubelet are shared"
    for number, (pod, each) in enumerate(zip(pods, started, strict=True)):
        assert f"ALIQUOT_LEASE_ID=l-{number}" in environment_of(each), "each has its own"
        assert [str(pod.cgroup).removeprefix(str(hierarchy()))] == place.cgroups_of(f"l-{number}")
    place.audit()


async def test_containers_of_a_pod_share_its_part(place: Place) -> None:
    await place.lease("l-1")
    pod = Pod(PodIdentity("default", "a", str(uuid.uuid4())), NODE, place.annotations("l-1"))
    await place.cluster.put(pod)
    wanted = {"first": 10, "main": 25, "beside": 5}
    admitted = await place.kubelet.admit("a", pod.identity.uid, wanted, first=frozenset({"first"}))
    assert set(admitted.units["first"]) < set(admitted.units["main"])
    first = await place.kubelet.run(admitted, "first", burn_command("3Gi"))
    await asyncio.to_thread(wait_for_output, first.process, b"holds")
    first.process.kill()
    first.process.wait()
    await holding(place, admitted, "2Gi")
    assert b"refused 3Gi" in await refused_memory(place, admitted, "3Gi", "beside")
    place.audit()


async def test_nobody_starts_without_a_lease_of_its_own(place: Place) -> None:
    place.service.binder._prepare_s = 0.5  # type: ignore[union-attr]
    await place.lease("l-1")
    await place.lease("l-2")

    async def refused(annotations: dict[str, str], name: str) -> str:
        pod = Pod(PodIdentity("default", name, str(uuid.uuid4())), NODE, annotations)
        await place.cluster.put(pod)
        admitted = await place.kubelet.admit(name, pod.identity.uid, {"main": 5})
        with pytest.raises(StartRefused) as caught:
            await place.kubelet.run(admitted, "main", ["true"])
        place.kubelet.remove(admitted)
        await place.cluster.delete(pod.identity.uid)
        return str(caught.value)

    genuine = place.annotations("l-1")
    assert "was not placed by aliquot" in await refused({}, "none")
    more = {key: text.replace(str(4 * GIB), str(8 * GIB)) for key, text in genuine.items()}
    assert "is not what lease l-1 has on this node" in await refused(more, "more")
    other = {key: text.replace(NODE, "elsewhere") for key, text in genuine.items()}
    assert "is assigned to node elsewhere" in await refused(other, "other")
    gone = {key: text.replace("l-1", "l-9") for key, text in genuine.items()}
    assert "lease l-9 has nothing" in await refused(gone, "gone")
    assert "can't be read" in await refused({**genuine, "aliquot.dev/assignment": "{"}, "broken")
    assert not place.cgroups_of("l-1")

    owner = await place.bound("owner", "l-1")
    await place.kubelet.run(owner, "main", ["sleep", "60"])
    assert "assignments must not be copied" in await refused(genuine, "copy")
    assert len(place.cgroups_of("l-1")) == 1
    place.audit()


async def test_a_pod_of_the_same_name_is_another_pod(place: Place) -> None:
    """The kubelet may start a container of a pod that was made again by the same name."""
    await place.lease("l-1")
    await place.lease("l-2")
    old = await place.bound("web-0", "l-1")
    await place.kubelet.run(old, "main", ["sleep", "60"])
    place.kubelet.remove(old)
    await place.cluster.delete(old.uid)
    new = await place.bound("web-0", "l-2")
    job = await place.kubelet.run(new, "main", ["sleep", "60"])
    assert "ALIQUOT_LEASE_ID=l-2" in environment_of(job)
    await auntil(lambda: place.released == ["l-1"], "the old one's lease is given back")
    place.audit()


async def test_a_whole_device(place: Place) -> None:
    await place.leases_of({"l-1": (1, 1000, 30 * GIB)})
    pod = Pod(PodIdentity("default", "a", str(uuid.uuid4())), NODE, place.annotations("l-1"))
    await place.cluster.put(pod)
    admitted = await place.kubelet.admit("a", pod.identity.uid, {"main": 100})
    job = await place.kubelet.run(admitted, "main", ["sleep", "60"])
    assert f"CUDA_VISIBLE_DEVICES={place.agent.uuids[1]}" in environment_of(job)
    assert (await place.condition(admitted, reason="None")).startswith("True: 1 of")
    place.audit()


def beside(place: Place, pod: AdmittedPod) -> None:
    """The pod's sandbox, in which a runtime keeps a process that is given nothing."""
    cgroup = pod.cgroup / "sandbox"
    cgroup.mkdir()
    pod.running.append(Running("sandbox", cgroup, run_in(cgroup, ["sleep", "1000"], {"PATH": os.environ["PATH"]})))


def patience(place: Place, seconds: float) -> None:
    place.service.binder.containers.patience_s = seconds  # type: ignore[union-attr]


async def reconciled(place: Place) -> None:
    """All pods have been looked at twice since now."""
    containers, looks = place.service.binder.containers, [0]  # type: ignore[union-attr]
    wrong = containers.wrong

    def counted(pod: Pod) -> dict[str, str]:
        looks[0] += 1
        return wrong(pod)

    containers.wrong = counted  # type: ignore[method-assign]
    await auntil(lambda: looks[0] >= 2 * len(place.cluster.pods), "all have been looked at")


async def test_a_runtime_that_leaves_things_out_is_noticed(place: Place) -> None:
    place.kubelet.drops_cdi = True
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    beside(place, pod)
    job = await place.kubelet.run(pod, "main", ["sleep", "60"])
    patience(place, 0)
    await place.cluster.update(pod.uid, container_ids=(f"containerd://{job.id}",))
    assert "left out what the device plugin gave it" in await place.condition(pod, reason="NotInjected")


async def test_a_container_outside_of_its_pod_is_noticed(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    await place.kubelet.run(pod, "main", ["sleep", "60"])
    patience(place, 0)
    await place.cluster.update(pod.uid, container_ids=("containerd://" + "f" * 64,))
    assert "nothing can be said of its limits" in await place.condition(pod, reason="ContainerElsewhere")


async def test_nothing_is_wrong_with_a_container_that_has_just_ended(place: Place) -> None:
    """A kubelet says for seconds on that it runs, when its cgroup, or its processes, have gone already."""
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    beside(place, pod)
    job = await place.kubelet.run(pod, "main", ["sleep", "60"])
    patience(place, 1e9)
    await place.cluster.update(pod.uid, container_ids=(f"containerd://{job.id}",))
    await place.condition(pod, reason="Preload")
    job.process.kill()
    job.process.wait()
    await reconciled(place)
    assert (await place.condition(pod, reason="Preload")).startswith("True"), "the sandbox is nobody's program"
    patience(place, 0)
    await reconciled(place)
    assert (await place.condition(pod, reason="Preload")).startswith("True")
    patience(place, 1e9)
    await auntil(lambda: _removed(job.cgroup), "the runtime removes its cgroup")
    await reconciled(place)
    assert (await place.condition(pod, reason="Preload")).startswith("True")


def _removed(cgroup: Path) -> bool:
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.root("to act as several users")
async def test_a_user_that_only_the_image_names_is_let_in(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    job = await place.kubelet.run(pod, "main", ["setpriv", "--reuid=54321", "--clear-groups", "sleep", "60"])
    library = next(each for each in environment_of(job) if each.startswith("LD_PRELOAD="))
    account = Path(library.partition("=")[2]).with_name("account")
    await auntil(lambda: account.stat().st_uid == 54321, "its processes may keep the account")

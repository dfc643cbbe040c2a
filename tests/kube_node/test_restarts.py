"""Everything that stands around a running container is restarted, alone and two at a time: it runs on, under its limit,
and nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable

import pytest

from aliquot.kube.node.core.resources import MEMORY_RESOURCE
from aliquot.kube.node.objects import NODE_CONDITION, NodeRecord
from tests.agent.harness import auntil, ended_by
from tests.kube_node.conftest import Place
from tests.kube_node.fake_kubelet import StartRefused
from tests.kube_node.test_pods import holding, refused_memory

pytestmark = pytest.mark.root("to make cgroups")

Restart = Callable[[Place], Awaitable[None]]


async def kubelet(place: Place) -> None:
    await place.kubelet.restart()


async def plugin(place: Place) -> None:
    await place.stop()
    await auntil(lambda: place.kubelet.allocatable == 0, "a plugin that has gone offers nothing")
    await place.start()


async def agent(place: Place) -> None:
    snapshots = len(place.coordinator.snapshots)
    await asyncio.to_thread(place.agent.kill9)
    await asyncio.to_thread(place.agent.start, place.coordinator.address)
    await place.coordinator.until(lambda: len(place.coordinator.snapshots) > snapshots, "it is connected again")


async def plugin_and_kubelet(place: Place) -> None:
    await place.stop()
    await place.kubelet.restart()
    await place.start()


async def plugin_and_agent(place: Place) -> None:
    await place.stop()
    await agent(place)
    await place.start()


async def kubelet_and_agent(place: Place) -> None:
    await asyncio.gather(place.kubelet.restart(), agent(place))


@pytest.mark.parametrize(
    "restart",
    [kubelet, plugin, agent, plugin_and_kubelet, plugin_and_agent, kubelet_and_agent],
    ids=lambda r: r.__name__,
)
async def test_what_runs_goes_on_and_nothing_is_left_over(place: Place, restart: Restart) -> None:
    await place.lease("l-1")
    await place.lease("l-2")
    kept = await place.bound("kept", "l-1")
    left = await place.bound("left", "l-2")
    job = await holding(place, kept, "2Gi")
    await place.kubelet.run(left, "main", ["sleep", "60"])
    registrations = place.kubelet.registrations

    await restart(place)

    await auntil(lambda: place.kubelet.allocatable == 200, "the units are back")
    assert place.kubelet.registrations >= registrations
    assert job.process.poll() is None
    await auntil(lambda: (s := place.agent.slice_of("l-1.1.0")) is not None and job.process.pid in s.pids, "still its")
    assert b"refused 3Gi" in await refused_memory(place, kept, "3Gi"), "a container that starts again is held as well"
    place.kubelet.remove(left)
    await place.cluster.delete(left.uid)
    await auntil(lambda: place.released == ["l-2"], "the lease of the pod that went is given back")
    await auntil(lambda: place.agent.slice_of("l-2.1.0") is None, "and ends")
    place.audit()
    assert place.service is not None
    await auntil(lambda: [each.uid for each in place.service.leaving._records.all()] == [kept.uid], "no record is left")  # type: ignore[union-attr]


async def test_a_pod_that_goes_while_nobody_looks(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    await place.kubelet.run(pod, "main", ["sleep", "60"])
    await place.stop()
    place.kubelet.remove(pod)
    await place.cluster.delete(pod.uid)
    await place.start()
    await auntil(lambda: place.released == ["l-1"], "its lease is given back all the same")
    await auntil(lambda: not list(place.kubelet.cdi.iterdir()), "what was put there for it goes")


@pytest.mark.parametrize("place", [("watchdog", "cdi", False)], indirect=True)
async def test_nothing_starts_while_the_part_is_away_and_who_did_is_held_when_it_is_back(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    await place.stop()
    with pytest.raises(StartRefused):
        await place.kubelet.run(pod, "main", ["sleep", "60"])
    # One of the same pod for which no units were counted: nobody is asked before it starts.
    slipped = await holding(place, pod, "6Gi", "slipped")
    await place.start()
    assert await asyncio.to_thread(ended_by, slipped.process, signal.SIGTERM)


async def test_a_container_that_outlives_its_pod_ends_with_its_lease(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    job = await holding(place, pod, "1Gi")
    await place.cluster.delete(pod.uid)
    await asyncio.to_thread(job.process.wait, 30)
    await auntil(lambda: place.agent.slice_of("l-1.1.0") is None, "its capacity is free when it has gone, not before")


async def test_a_pod_that_has_ended_gives_its_lease_back(place: Place) -> None:
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    job = await place.kubelet.run(pod, "main", ["true"])
    await asyncio.to_thread(job.process.wait, 30)
    assert not place.released
    await place.cluster.update(pod.uid, phase="Succeeded")
    await auntil(lambda: place.released == ["l-1"], "nothing of it will run again")


async def test_the_api_server_is_away(place: Place) -> None:
    await place.lease("l-1")
    await place.lease("l-2")
    known = await place.bound("known", "l-1")
    (await place.kubelet.run(known, "main", ["true"])).process.wait()
    new = await place.bound("new", "l-2")
    place.cluster.away = True
    place.service.binder._prepare_s = 0.5  # type: ignore[union-attr]
    await place.kubelet.run(known, "main", ["sleep", "60"])
    with pytest.raises(StartRefused, match="the API server does not answer"):
        await place.kubelet.run(new, "main", ["sleep", "60"])
    await place.cluster.delete(known.uid)
    place.cluster.pods[known.uid] = place.service.reporting.pods[known.uid]  # type: ignore[union-attr]
    assert not place.released, "nothing is ended on the word of a cache"
    place.cluster.away = False
    await place.cluster.change()
    await place.kubelet.run(new, "main", ["sleep", "60"])
    place.audit()


async def test_a_node_that_is_registered_anew_has_its_memory_again(place: Place) -> None:
    def memory() -> str:
        return "" if place.cluster.node is None else place.cluster.node.allocatable.get(MEMORY_RESOURCE, "")

    await auntil(lambda: memory() not in ("", "0"), "advertised")
    before = memory()
    place.cluster.node = None
    await place.cluster.change()
    place.cluster.node = NodeRecord("node-2", {"cpu": "8"}, {"cpu": "8"})
    await place.cluster.change()
    await auntil(lambda: memory() == before, "advertised again")
    assert place.cluster.node.capacity["cpu"] == "8"
    patches = place.cluster.patches
    await place.cluster.change()
    await place.cluster.change()
    assert place.cluster.patches == patches, "what is as it should be is not written"


async def test_two_owners_of_one_gpu(place: Place) -> None:
    def condition() -> tuple[str, str, str]:
        return (
            ("", "", "") if place.cluster.node is None else place.cluster.node.conditions.get(NODE_CONDITION, ("",) * 3)
        )

    await auntil(lambda: condition()[0] == "True", "it is the only one")
    place.cluster.node = NodeRecord("node-1", {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "2"})
    await place.cluster.change()
    await auntil(lambda: condition()[1] == "TwoOwners" and place.kubelet.allocatable == 0, "nothing is offered")
    assert "NVIDIA's device plugin (nvidia.com/gpu: 2) and aliquot (aliquot.dev/gpu-percent)" in condition()[2]
    assert place.cluster.node.allocatable[MEMORY_RESOURCE] == "0"
    place.cluster.node = NodeRecord("node-1", {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"})
    await place.cluster.change()
    await auntil(lambda: place.kubelet.allocatable == 200, "the other one is off")


async def test_a_kubelet_that_is_not_there_yet(place: Place) -> None:
    await place.kubelet.stop()
    for path in place.kubelet.plugins.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    assert place.service is not None
    await auntil(lambda: "there is no kubelet" in place.service.registration.problem, "it says so")  # type: ignore[union-attr]
    await place.kubelet.start()
    await auntil(lambda: place.kubelet.allocatable == 200, "it registers when there is one")

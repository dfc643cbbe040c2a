"""Claims from their preparation to their end, on a node with a real agent, real cgroups and real processes."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from aliquot.kube.core.claims import DRIVER, REFUSED, RawClaim
from aliquot.kube.node.core.devices import device_name
from aliquot.kube.node.dra.preparing import CdiNeeded
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.protos import deviceplugin_pb2
from aliquot.kube.node.protos import dra_pb2 as pb
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import InjectionMode
from tests.agent.harness import auntil, burn_command, wait_for_output
from tests.kube_node.conftest import NODE, Place, desired_stop
from tests.kube_node.fake_kubelet import AdmittedPod, Running, StartRefused

pytestmark = [
    pytest.mark.root("to make cgroups"),
    pytest.mark.parametrize("place", [("preload,watchdog", "cdi", False, "dra")], indirect=True),
]


async def claimed(place: Place, name: str, lease_id: str, **annotations: str) -> tuple[AdmittedPod, pb.Claim]:
    """A pod with a claim that is allocated, and that the controllers have given this lease."""
    pod = Pod(PodIdentity("default", name, str(uuid.uuid4())), NODE)
    await place.cluster.put(pod)
    claim = pb.Claim(namespace="default", name=f"{name}-gpu", uid=str(uuid.uuid4()))
    told = {**(place.annotations(lease_id) if lease_id else {}), **annotations}
    place.cluster.claims["default", claim.name] = allocated(place, claim, [(name, pod.identity.uid)], told)
    return await place.kubelet.admit_claim(name, pod.identity.uid), claim


def allocated(place: Place, claim: pb.Claim, users: list[tuple[str, str]], annotations: dict[str, str]) -> RawClaim:
    result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device_name(place.agent.uuids[0])}
    document: dict[str, Any] = {
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "annotations": annotations,
        },
        "status": {
            "allocation": {"devices": {"results": [{**result, "shareID": "s-1"}]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid} for name, uid in users],
        },
    }
    return msgspec.convert(document, RawClaim)


async def started(place: Place, pod: AdmittedPod, cdi: list[str], command: list[str]) -> Running:
    devices = [deviceplugin_pb2.CDIDevice(name=name) for name in dict.fromkeys(cdi)]
    pod.answers["main"] = deviceplugin_pb2.ContainerAllocateResponse(cdi_devices=devices)
    return await place.kubelet.run(pod, "main", command)


async def test_a_container_is_held_at_its_claim(place: Place) -> None:
    assert place.cluster.slice is not None
    (first, _) = place.cluster.slice["spec"]["devices"]
    assert first["attributes"]["uuid"]["string"] in place.agent.uuids
    assert first["allowMultipleAllocations"]
    assert place.kubelet.allocatable == 0, "no units beside claims"
    await place.lease("l-1")
    pod, claim = await claimed(place, "a", "l-1")
    cdi = await place.kubelet.prepare_claim(claim)
    assert place.cgroups_of("l-1"), "its limits are in force before anything runs"
    greedy = await started(place, pod, cdi, burn_command("6Gi"))
    said, _ = await asyncio.to_thread(greedy.process.communicate, timeout=30)
    assert b"refused 6Gi" in said
    job = await started(place, pod, cdi, burn_command("2Gi"))
    await asyncio.to_thread(wait_for_output, job.process, b"holds")
    assert (await place.condition(pod, reason="Preload")).startswith("True: 0.25 of")
    assert await place.kubelet.prepare_claim(claim) == cdi, "asked again, it is prepared"


async def test_a_claim_is_unprepared_with_the_agent_away(place: Place) -> None:
    await place.lease("l-1")
    pod, claim = await claimed(place, "a", "l-1")
    stop = desired_stop(place.leases["l-1"])
    await place.kubelet.prepare_claim(claim)
    assert list(place.kubelet.cdi.glob("*.json"))
    await asyncio.to_thread(place.agent.terminate)
    place.kubelet.remove(pod)
    await place.cluster.delete(pod.uid)
    await place.kubelet.unprepare_claim(claim)
    await place.kubelet.unprepare_claim(claim)
    assert not list(place.kubelet.cdi.glob("*.json"))
    # Meanwhile the controllers have released the lease: the agent hears of it when it is back, and forgets it.
    snapshots = len(place.coordinator.snapshots)
    await asyncio.to_thread(place.agent.start, place.coordinator.address)
    await place.coordinator.until(lambda: len(place.coordinator.snapshots) > snapshots, "it is connected again")

    def forgotten() -> bool:
        place.coordinator.desire(stop)  # as often as one likes
        return place.agent.slice_of("l-1.1.0") is None

    await auntil(forgotten, "its limit is taken off")


async def test_a_claim_that_was_prepared_before_a_restart(place: Place) -> None:
    await place.lease("l-1")
    pod, claim = await claimed(place, "a", "l-1")
    cdi = await place.kubelet.prepare_claim(claim)
    await place.stop()
    await place.start()
    await started(place, pod, cdi, ["sleep", "60"])
    assert (await place.condition(pod, reason="Preload")).startswith("True")
    assert await place.kubelet.prepare_claim(claim) == cdi
    await place.kubelet.unprepare_claim(claim)
    assert not list(place.kubelet.cdi.glob("*.json"))


async def test_no_claim_is_prepared_without_its_lease(place: Place) -> None:
    assert place.service is not None
    assert place.service.claims is not None
    place.service.claims.plugin._prepare.__self__._prepare_s = 0.5  # type: ignore[attr-defined]

    async def refused(name: str, lease_id: str = "", **annotations: str) -> str:
        pod, claim = await claimed(place, name, lease_id, **annotations)
        with pytest.raises(StartRefused) as caught:
            await place.kubelet.prepare_claim(claim)
        place.kubelet.remove(pod)
        return str(caught.value)

    assert "has no lease (yet)" in await refused("none")
    said = await refused("late", **{REFUSED: "SHARE_HELD: 1000 of 1000 are held"})
    assert "the pool has refused claim default/late-gpu: SHARE_HELD" in said
    await place.lease("l-1")
    more = place.annotations("l-1")
    changed = {key: text.replace('"share_milli": 250', '"share_milli": 500') for key, text in more.items()}
    assert "is not what lease l-1 has on this node" in await refused("more", **changed)
    assert not place.cgroups_of("l-1")

    # What no waiting mends is said at once: whoever waited here would wait for hours.
    place.service.claims.plugin._prepare.__self__._prepare_s = 36_000  # type: ignore[attr-defined]
    pod, claim = await claimed(place, "shared", "l-1")
    users = [("shared", pod.uid), ("other", "uid-of-another")]
    place.cluster.claims["default", claim.name] = allocated(place, claim, users, place.annotations("l-1"))
    with pytest.raises(StartRefused, match="reserved for 2 pods"):
        await place.kubelet.prepare_claim(claim)
    again = pb.Claim(namespace="default", name=claim.name, uid="another")
    with pytest.raises(StartRefused, match="gone, or another"):
        await place.kubelet.prepare_claim(again)


async def test_a_device_that_falls_ill_is_tainted(place: Place) -> None:
    place.agent.scenario.lose(0)

    def tainted() -> list[str]:
        assert place.cluster.slice is not None
        spec = place.cluster.slice["spec"]
        return [device["name"] for device in spec["devices"] if device.get("taints")]

    await auntil(lambda: tainted() == [device_name(place.agent.uuids[0])], "its taint")
    assert place.cluster.slice is not None
    assert place.cluster.slice["spec"]["pool"]["generation"] > 1


async def test_claims_need_cdi(place: Place) -> None:
    settings = msgspec.structs.replace(place.settings, injection=InjectionMode.MOUNTS)
    with pytest.raises(CdiNeeded):
        await NodeService.open(settings, NODE, place.cluster, place.release)

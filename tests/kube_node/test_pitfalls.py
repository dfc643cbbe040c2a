"""What goes wrong on nodes of Kubernetes, beside what is in the other files here: `kubernetes-pitfalls.md` has all."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import uuid

import pytest
import yaml

from aliquot.kube.node.channels import unix_channel
from aliquot.kube.node.core.resources import MEMORY_RESOURCE, PERCENT_RESOURCE
from aliquot.kube.node.identity import MIRROR_ANNOTATION, PodIdentity
from aliquot.kube.node.objects import NODE_CONDITION, Pod
from aliquot.kube.node.protos import podresources_pb2 as resources_pb
from aliquot.kube.node.protos import podresources_pb2_grpc as resources_rpc
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.sole import SecondPart
from tests.agent.harness import ROOT, auntil
from tests.kube_node.conftest import NODE, Place
from tests.kube_node.fake_kubelet import LIST_BYTES_MAX, AdmittedPod, StartRefused
from tests.kube_node.test_pods import environment_of, holding, refused_memory

root = pytest.mark.root("to make cgroups")


def condition_of_node(place: Place) -> tuple[str, str, str]:
    found = place.cluster.node.conditions if place.cluster.node is not None else {}
    return found.get(NODE_CONDITION, ("", "", ""))


async def pod_of(place: Place, name: str, annotations: dict[str, str], units: int = 25) -> AdmittedPod:
    pod = Pod(PodIdentity("default", name, str(uuid.uuid4())), NODE, annotations)
    await place.cluster.put(pod)
    return await place.kubelet.admit(name, pod.identity.uid, {"main": units})


@root
async def test_a_node_that_was_renamed_offers_nothing_and_says_both_names(place: Place) -> None:
    await auntil(lambda: condition_of_node(place)[0] == "True", "by its own name it is offered")
    await place.stop()
    renamed = await NodeService.open(place.settings, "new-name", place.cluster, place.release)
    task = asyncio.create_task(renamed.run())
    try:
        await auntil(lambda: condition_of_node(place)[1] == "OtherName", "its other name is told")
        assert f"this node is new-name in the cluster and {NODE} in the pool" in condition_of_node(place)[2]
        await auntil(lambda: place.kubelet.free_or_not(PERCENT_RESOURCE) == [], "nothing is offered")
        assert place.cluster.node is not None
        assert place.cluster.node.allocatable[MEMORY_RESOURCE] == "0"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await place.start()
    await auntil(lambda: condition_of_node(place)[0] == "True", "it has its old name again")


@root
async def test_a_second_part_on_a_node_is_refused_with_both_names(place: Place) -> None:
    second = await NodeService.open(place.settings, "second", place.cluster, place.release)
    with pytest.raises(SecondPart) as caught:
        await second.run()
    assert f"({NODE}: process " in caught.value.message
    assert "(second: process " in caught.value.message
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    await place.kubelet.run(pod, "main", ["true"])
    assert place.kubelet.allocatable == 200, "the first goes on"
    # A kubelet that starts removes what is in its folder; the lock is not in there.
    await place.kubelet.restart()
    for path in place.kubelet.plugins.iterdir():
        if path.name != "kubelet.sock":
            path.unlink()
    with pytest.raises(SecondPart):
        await second.run()


@root
async def test_a_second_agent_on_a_node_is_refused(place: Place) -> None:
    """By the socket that all programs of a node know; with another socket by the pool, which knows the devices."""
    command = [sys.executable, "-m", "aliquot.agent.main", "--coordinator", place.coordinator.address]
    own = ("--state-dir", str(place.settings.state_dir / "second"), "--socket", str(place.agent.socket))
    process = await asyncio.create_subprocess_exec(
        *command,
        *own,
        *("--metrics-port", "0", "--node-name", "second"),
        env=place.agent.base_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode not in (0, None)
    assert f"another agent ({NODE}) answers on {place.agent.socket}" in said.decode()
    assert place.agent.answers()


@root
async def test_a_copied_assignment_gets_nothing_though_no_policy_forbids_it(place: Place) -> None:
    """Also where the copy's container is the first that starts."""
    place.service.binder._prepare_s = 0.5  # type: ignore[union-attr]
    await place.lease("l-1")
    owner = await place.bound("owner", "l-1")
    await auntil(lambda: owner.uid in place.service.reporting.pods, "who copies has read")  # type: ignore[union-attr]
    copy = await pod_of(place, "copy", place.annotations("l-1"))
    with pytest.raises(StartRefused, match="both show member 0 of lease l-1; it is default/owner's"):
        await place.kubelet.run(copy, "main", ["sleep", "60"])
    assert set(place.cgroups_of("l-1")) <= {str(owner.cgroup).removeprefix(str(place.settings.cgroup_root))}
    await holding(place, owner, "1Gi")
    await place.condition(copy, reason="AssignmentTaken")
    # The node's part has forgotten who was first; what is tied stays tied.
    await place.stop()
    await place.start()
    place.service.binder._prepare_s = 0.5  # type: ignore[union-attr]
    with pytest.raises(StartRefused, match="assignments must not be copied"):
        await place.kubelet.run(copy, "main", ["sleep", "60"])
    assert b"refused 6Gi" in await refused_memory(place, owner, "6Gi")
    place.kubelet.remove(copy)
    await place.cluster.delete(copy.uid)
    place.audit()


@root
async def test_a_static_pod_has_no_part(place: Place) -> None:
    await place.lease("l-1")
    mirror = {**place.annotations("l-1"), MIRROR_ANNOTATION: "0123456789abcdef"}
    pod = await pod_of(place, "static", mirror)
    with pytest.raises(StartRefused, match="is the kubelet's own, from a file"):
        await place.kubelet.run(pod, "main", ["true"])
    await place.condition(pod, reason="StaticPod")
    assert not place.cgroups_of("l-1")


@root
async def test_a_pod_that_asks_for_no_units_is_told_that_it_was_given_nothing(place: Place) -> None:
    """Admission did not see it: no device plugin is asked when its containers start."""
    await place.lease("l-1")
    pod = Pod(PodIdentity("default", "a", str(uuid.uuid4())), NODE, place.annotations("l-1"))
    await place.cluster.put(pod)
    admitted = await place.kubelet.admit("a", pod.identity.uid, {})
    job = await place.kubelet.run(admitted, "main", ["sleep", "60"])
    place.service.binder.containers.patience_s = 0  # type: ignore[union-attr]
    await place.cluster.update(admitted.uid, container_ids=(f"containerd://{job.id}",))
    assert "admission did not see the pod" in await place.condition(admitted, reason="NoUnits")
    assert len(place.cgroups_of("l-1")) == 1, "what holds a cgroup holds it all the same"


@root
async def test_a_kubelet_whose_questions_others_use_up(place: Place) -> None:
    """Everybody on a node shares its limit."""
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    place.kubelet.used_up = 2
    job = await place.kubelet.run(pod, "main", ["sleep", "60"])
    assert place.kubelet.refused >= 2
    assert "ALIQUOT_LEASE_ID=l-1" in environment_of(job)


@root
async def test_a_kubelet_with_more_pods_than_a_message_usually_holds(place: Place) -> None:
    """A client reads 4 MiB unless it is told otherwise, and a kubelet lists CPUs and memory of every pod, too."""
    place.kubelet.others = 60_000
    async with unix_channel(place.kubelet.pod_resources, max_bytes=64 << 20) as channel:
        answer = await resources_rpc.PodResourcesListerStub(channel).List(resources_pb.ListPodResourcesRequest())
    assert answer.ByteSize() > LIST_BYTES_MAX
    await place.lease("l-1")
    pod = await place.bound("a", "l-1")
    job = await place.kubelet.run(pod, "main", ["sleep", "60"])
    assert "ALIQUOT_LEASE_ID=l-1" in environment_of(job)


@root
async def test_a_pod_that_is_listed_beside_the_one_made_again_by_its_name(place: Place) -> None:
    """The kubelet may list a pod for a while that has ended: by its name it is the other one as well."""
    await place.lease("l-1")
    await place.lease("l-2")
    old = await place.bound("web-0", "l-1")
    await place.kubelet.run(old, "main", ["true"])
    place.kubelet.remove(old)
    await place.cluster.delete(old.uid)
    new = await place.bound("web-0", "l-2")
    place.kubelet.pods = {**place.kubelet.pods, old.uid: old}  # listed last
    job = await place.kubelet.run(new, "main", ["sleep", "60"])
    assert "ALIQUOT_LEASE_ID=l-2" in environment_of(job)
    place.kubelet.remove(old)


@root
async def test_sidecars_and_containers_that_run_first_are_in_one_budget(place: Place) -> None:
    """A sidecar starts before the others and stays; one that runs first may have more than is left to those beside."""
    await place.lease("l-1")
    pod = Pod(PodIdentity("default", "a", str(uuid.uuid4())), NODE, place.annotations("l-1"))
    await place.cluster.put(pod)
    admitted = await place.kubelet.admit(
        "a", pod.identity.uid, {"first": 25, "sidecar": 5, "main": 20}, first=frozenset({"first"})
    )
    assert b"refused 5Gi" in await refused_memory(place, admitted, "5Gi", "first")
    sidecar = await holding(place, admitted, "1Gi", "sidecar")
    assert b"refused 4Gi" in await refused_memory(place, admitted, "4Gi", "main"), "a sidecar's is the pod's"
    main = await holding(place, admitted, "2Gi", "main")
    both = {sidecar.process.pid, main.process.pid}
    await auntil(lambda: (s := place.agent.slice_of("l-1.1.0")) is not None and both <= set(s.pids), "one lease's")
    assert len(place.cgroups_of("l-1")) == 1


def test_what_the_node_mounts_are_folders() -> None:
    """A socket that is mounted by itself is the old one's for ever when the other side makes it anew."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "daemonset" / "kubernetes.yaml").read_text())
    specs = [(((each or {}).get("spec") or {}).get("template") or {}).get("spec") or {} for each in documents]
    paths = [volume["hostPath"] for spec in specs for volume in spec.get("volumes") or () if "hostPath" in volume]
    assert paths
    assert not [each for each in paths if each["path"].endswith(".sock") or "Directory" not in each.get("type", "")]


def test_every_pitfall_of_the_page_has_its_test() -> None:
    page = (ROOT / "docs" / "kubernetes-pitfalls.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what goes wrong")]
    assert len(rows) > 50
    assert not [row for row in rows if "`tests/" not in row.split("|")[3]]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    there = {path: (ROOT / path).read_text() for path, _ in named}
    assert not [
        (path, name) for path, name in named if not re.search(rf"^(async )?def {name}\(", there[path], re.MULTILINE)
    ]

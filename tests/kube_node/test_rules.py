"""What is decided on the node: names of cgroups, identity, what is advertised."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.client import Tier
from aliquot.client.local import LocalSlice
from aliquot.kube.core.leases import KubeLease, Part, assignment_of
from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION, LEASE_ANNOTATION, BadAssignment, read_assignment
from aliquot.kube.node.core.cgroup_names import elsewhere, pod_cgroups
from aliquot.kube.node.core.resources import (
    Advertised,
    PoolDevice,
    Units,
    advertise,
    other_owners,
    unit_names,
)
from aliquot.kube.node.identity import NotBound, PodIdentity, decide, holders_of
from aliquot.kube.node.injection import place
from aliquot.kube.node.protos import deviceplugin_pb2 as pb

UID = "0123abcd-0000-4000-8000-00000000abcd"
POD = PodIdentity("default", "a", UID)
HELD = LocalSlice("s-1", "l-1", "t", "GPU-1", 250, 4 << 30, None, (), Tier.DRIVER, "ACTIVE", 0, 3)


def written(**changed: object) -> dict[str, str]:
    piece = {"device": "GPU-1", "share_milli": 250, "memory_bytes": 4 << 30, "tier": "driver"}
    said = {"lease": "l-1", "member": 0, "node": "node-1", "slices": [piece]} | changed
    return {LEASE_ANNOTATION: "l-1", ASSIGNMENT_ANNOTATION: json.dumps(said)}


def test_the_cgroups_that_kubelets_make() -> None:
    assert pod_cgroups(UID) == (
        f"/kubepods/pod{UID}",
        "/kubepods.slice/kubepods-pod0123abcd_0000_4000_8000_00000000abcd.slice",
        f"/kubepods/burstable/pod{UID}",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123abcd_0000_4000_8000_00000000abcd.slice",
        f"/kubepods/besteffort/pod{UID}",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0123abcd_0000_4000_8000_00000000abcd.slice",
    )
    kind = pod_cgroups(UID, "/kubelet")
    assert kind[0] == f"/kubelet/kubepods/pod{UID}"
    assert kind[1].startswith("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod0123abcd_")


def test_containers_by_the_names_that_runtimes_give_them() -> None:
    ids = ["containerd://" + "a" * 64, "cri-o://" + "b" * 64]
    assert not elsewhere(ids, ["cri-containerd-" + "a" * 64 + ".scope", "crio-" + "b" * 64 + ".scope"])
    assert elsewhere(ids, ["a" * 64]) == ["b" * 64]
    assert elsewhere(["containerd://"], ["a" * 64]) == [""]


def test_an_assignment_decides_only_where_all_witnesses_agree() -> None:
    assert decide(POD, {"node-1"}, written(), [HELD]).lease == "l-1"
    older = replace(HELD, device_uuid="GPU-9", share_milli=1000, memory_bytes=1, status="STOPPING", lease_epoch=2)
    assert decide(POD, {"node-1"}, written(), [older, HELD]).lease == "l-1"
    for bad, word in [
        (({"node-2"}, written(), [HELD]), "OtherNode"),
        (({"node-1"}, {}, [HELD]), "NoAssignment"),
        (({"node-1"}, written(), []), "LeaseNotHere"),
        (({"node-1"}, written(member=1), [HELD]), "LeaseNotHere"),
        (({"node-1"}, written(), [HELD, HELD]), "AssignmentDiffers"),
        (({"node-1"}, written(), [replace(HELD, status="STOPPING")]), "LeaseEnds"),
        (({"node-1"}, written(), [replace(HELD, status="QUARANTINED")]), "LeaseEnds"),
    ]:
        with pytest.raises(NotBound) as caught:
            decide(POD, *bad)
        assert caught.value.word == word


def test_what_the_placer_writes_is_what_the_node_reads() -> None:
    parts = (
        Part(node="node-1", member=0, device="GPU-1", share_milli=250, memory_bytes=4 << 30, tier="driver"),
        Part(node="node-2", member=1, device="GPU-9", share_milli=250, memory_bytes=4 << 30, tier="driver"),
    )
    lease = KubeLease("l-1", "ACTIVE", 1, "default", UID, "", "", 0, 2, parts=parts)
    found = decide(POD, {"node-1"}, assignment_of(lease, 0), [HELD])
    assert (found.lease, found.member, found.slices[0].tier) == ("l-1", 0, "driver")
    with pytest.raises(NotBound, match="is assigned to node node-2"):
        decide(POD, {"node-1"}, assignment_of(lease, 1), [HELD])


@given(st.dictionaries(st.sampled_from([LEASE_ANNOTATION, ASSIGNMENT_ANNOTATION]), st.text()))
def test_whatever_the_annotations_hold_is_read_or_refused(found: dict[str, str]) -> None:
    try:
        read_assignment(found)
    except BadAssignment as error:
        assert error.message


@pytest.mark.parametrize(
    "changed",
    [{"slices": []}, {"lease": ""}, {"lease": "l-2"}, {"member": -1}, {"slices": "x"}, {"member": "0"}, {"node": None}],
)
def test_assignments_that_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(BadAssignment):
        read_assignment(written(**changed))


def test_units_are_held_by_the_pods_that_the_kubelet_names() -> None:
    held = {("a", "x"): {"u1", "u2"}, ("a", "y"): {"u3"}}
    assert holders_of(["u2"], held) == [("a", "x")]
    assert holders_of(["u9"], held) == []
    assert holders_of(["u1", "u3"], held) == [("a", "x"), ("a", "y")]


def test_what_a_node_advertises() -> None:
    devices = [PoolDevice("GPU-1", True, (40 << 30) + 5, 100), PoolDevice("GPU-2", False, 40 << 30, 100)]
    found = advertise(devices)
    assert found == Advertised(percent=Units(200, 100), memory_mib=40 << 10)
    names = unit_names(found.percent)
    assert [well for _, well in names] == [True] * 100 + [False] * 100
    assert names[:100] == unit_names(Units(100, 100)), "the same names whatever else there is"


def test_a_kubelet_can_read_the_list_of_a_large_node() -> None:
    names = unit_names(Units(64 * 100, 64 * 100))
    answer = pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health="Healthy") for name, _ in names])
    assert answer.ByteSize() < 4 << 20


def test_others_who_give_out_gpus_are_named() -> None:
    found = other_owners({"cpu": "8", "nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "7"}, {"gpu.nvidia.com", "net.x"})
    assert found == [
        "NVIDIA's device plugin (nvidia.com/gpu: 4)",
        "NVIDIA's device plugin (nvidia.com/mig-1g.5gb: 7)",
        "NVIDIA's DRA driver (ResourceSlices of gpu.nvidia.com)",
    ]
    assert not other_owners({"nvidia.com/gpu": "0", "aliquot.dev/gpu-percent": "100"}, {"dra.net"})


@given(st.lists(st.text(min_size=1), unique=True, min_size=1))
def test_a_place_is_named_by_the_units_whatever_their_order(units: list[str]) -> None:
    assert place(units) == place(reversed(units))

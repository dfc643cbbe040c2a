"""What `aliquot kube doctor` says of kubelets, container runtimes, kernels, drivers and feature gates around us."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aliquot.kube.core.surroundings import Finding, Machine, Mark, Wants, look_around
from tests.kube.cluster import KubeCluster, kube_cluster
from tests.kube.fake_api.rights import Rule
from tests.kube.making import make_namespace
from tests.kube.test_command import aliquot, kubeconfig

INFO = {
    "kubeletVersion": "v1.36.2",
    "containerRuntimeVersion": "containerd://2.1.4",
    "kernelVersion": "6.14.0-24-generic",
}
LABELS = {"nvidia.com/cuda.driver-version.full": "615.43.02"}
KUBELET = {"cgroupDriver": "systemd", "cgroupRoot": "/", "featureGates": {"RotateKubeletServerCertificate": True}}
TOOLKIT = "container-toolkit:v1.18.1"


def said(
    wants: Wants | None = None,
    *,
    minor: int = 36,
    labels: Mapping[str, str] = LABELS,
    driver: str = "",
    kubelet: Mapping[str, Any] | str = KUBELET,
    toolkit: str = TOOLKIT,
    **info: str,
) -> list[Finding]:
    """Of one node."""
    machine = Machine("n", {**INFO, **info}, labels, driver, kubelet)
    return list(look_around([machine], wants or Wants(), minor, toolkit))


def one(subject: str, *args: Any, **kwargs: Any) -> Finding:
    (found,) = [finding for finding in said(*args, **kwargs) if finding.subject == subject]
    return found


def test_a_node_that_has_all_is_good() -> None:
    found = said()
    assert [finding.subject for finding in found] == [
        "cgroup driver", "driver", "kernel", "kubelet", "runtime", "toolkit",
    ]  # fmt: skip
    assert {finding.mark for finding in found} == {Mark.GOOD}
    assert not any(finding.mend for finding in found)


CDI, MOUNTS, CLAIMS = Wants(), Wants(injection="mounts"), Wants(mode="dra")


@pytest.mark.parametrize(
    ("version", "minor", "wants", "mark", "text"),
    [
        ("v1.36.2+k3s1", 36, CDI, Mark.GOOD, "v1.36.2+k3s1"),
        ("v1.33.0", 36, CDI, Mark.GOOD, "v1.33.0"),
        ("v1.37.0", 36, CDI, Mark.BAD, "newer than the API server"),
        ("v1.32.9", 36, CDI, Mark.BAD, "more than 3 versions behind"),
        ("v1.28.1", 30, CDI, Mark.BAD, "node.injection=cdi needs 1.29"),
        ("v1.28.1", 30, MOUNTS, Mark.GOOD, "v1.28.1"),
        ("v1.35.0", 36, CLAIMS, Mark.BAD, "node.mode=dra needs 1.36"),
        ("", 36, CDI, Mark.NOTE, "not known"),
    ],
)
def test_the_kubelet(version: str, minor: int, wants: Wants, mark: Mark, text: str) -> None:
    found = one("kubelet", wants, minor=minor, kubeletVersion=version)
    assert found.mark is mark
    assert text in found.text
    assert bool(found.mend) is (mark is not Mark.GOOD)


@pytest.mark.parametrize(
    ("runtime", "wants", "mark", "text", "mend"),
    [
        ("containerd://2.1.4", CDI, Mark.GOOD, "CDI and NRI on", ""),
        ("containerd://v2.0.0-rc.1", CDI, Mark.GOOD, "CDI and NRI on", ""),
        ("containerd://1.7.24-k3s1", CDI, Mark.NOTE, "CDI and NRI off unless", "enable_cdi = true"),
        ("containerd://1.6.33", CDI, Mark.BAD, "drops CDI devices", "node.injection=mounts"),
        ("containerd://1.6.33", CLAIMS, Mark.BAD, "drops CDI devices", "upgrade containerd"),
        ("containerd://1.6.33", MOUNTS, Mark.GOOD, "needs nothing", ""),
        ("cri-o://1.34.1", CDI, Mark.GOOD, "cri-o 1.34.1 has CDI on", ""),
        ("cri-o://1.25.0", CDI, Mark.BAD, "drops CDI devices", "upgrade cri-o"),
        ("docker://27.1.1", CDI, Mark.NOTE, "not known", "NotInjected"),
        ("", CDI, Mark.NOTE, "not known", "NotInjected"),
        ("", MOUNTS, Mark.NOTE, "not known", "NotInjected"),
    ],
)
def test_the_container_runtime(runtime: str, wants: Wants, mark: Mark, text: str, mend: str) -> None:
    found = one("runtime", wants, containerRuntimeVersion=runtime)
    assert found.mark is mark
    assert text in found.text
    assert mend in found.mend
    if wants is CLAIMS:
        assert "mounts" not in found.mend, "claims can't go without CDI"


@pytest.mark.parametrize(
    ("version", "mark", "text"),
    [
        ("5.3.18-150300", Mark.BAD, "pidfd"),
        ("6.8.0-generic", Mark.GOOD, "without dmem"),
        ("6.14.0", Mark.GOOD, "6.14.0 (n)"),
        ("", Mark.NOTE, "not known"),
    ],
)
def test_the_kernel(version: str, mark: Mark, text: str) -> None:
    found = one("kernel", kernelVersion=version)
    assert found.mark is mark
    assert text in found.text


def test_the_driver_is_told_by_the_agent_else_by_labels_else_by_nobody() -> None:
    prefix = "nvidia.com/cuda.driver"
    assert one("driver", driver="580.65.06").text.startswith(
        "580.65.06, as its agent says: limits in the driver itself"
    )
    assert one("driver", driver="nvidia 615.1; drm 6.14").text == "nvidia 615.1; drm 6.14, as its agent says (n)"
    parts = {f"{prefix}.major": "615", f"{prefix}.minor": "43", f"{prefix}.rev": "02"}
    assert one("driver", labels=parts).text == "615.43.02, as its label says (n)"
    unknown = one("driver", labels={})
    assert (unknown.mark, unknown.mend) == (Mark.NOTE, "on the node: nvidia-smi, or aliquot doctor")


def test_the_toolkit_is_what_a_daemon_set_brings_and_of_nvidias_nodes_alone() -> None:
    assert one("toolkit").text == f"{TOOLKIT} (n)"
    unknown = one("toolkit", toolkit="")
    assert (unknown.mark, unknown.mend) == (Mark.NOTE, "on the node: nvidia-ctk --version")
    assert "toolkit" not in {finding.subject for finding in said(driver="drm 6.14", toolkit="")}


def test_what_a_kubelets_settings_are_in_the_way_of() -> None:
    assert one("cgroup driver").text == "systemd, below / (n)"
    kind = {**KUBELET, "cgroupRoot": "/kubelet"}
    found = one("cgroup driver", kubelet=kind)
    assert (found.mark, "node.kubeletCgroupRoot=/kubelet" in found.mend) == (Mark.BAD, True)
    assert one("cgroup driver", Wants(kubelet_cgroup_root="/kubelet"), kubelet=kind).mark is Mark.GOOD
    off = {**KUBELET, "featureGates": {"DevicePluginCDIDevices": False, "DRAConsumableCapacity": False}}
    assert "DevicePluginCDIDevices is switched off" in one("feature gates", kubelet=off).text
    assert "DRAConsumableCapacity, DevicePluginCDIDevices" in one("feature gates", CLAIMS, kubelet=off).text
    assert "feature gates" not in {finding.subject for finding in said(MOUNTS, kubelet=off)}


def test_nodes_of_which_the_same_is_to_be_said_are_one_line() -> None:
    machines = [Machine(f"n{number}", INFO, LABELS, "", KUBELET) for number in range(1000)]
    odd = Machine("odd", {**INFO, "kubeletVersion": "v1.37.0"}, LABELS, "", KUBELET)
    found = list(look_around([*machines, odd], Wants(), 36, TOOLKIT))
    assert len(found) == 7
    assert "v1.36.2 (n0, n1, n2 and 997 more)" in [finding.text for finding in found]
    assert any(finding.mark is Mark.BAD and "(odd)" in finding.text for finding in found)


# ------------------------------------------------------------------------------------ what the API server tells of it


@contextlib.asynccontextmanager
async def two_nodes(tmp_path: Path, token: str = "") -> AsyncIterator[tuple[KubeCluster, Any]]:
    """Of two sorts; and what the doctor says by subject, to whoever has this token (none: an administrator's)."""
    async with kube_cluster(2) as cluster:
        nodes = cluster.api.store.kind("v1", "nodes")
        old = {"kubeletVersion": "v1.34.1", "containerRuntimeVersion": "containerd://1.7.24", "kernelVersion": "6.8.0"}
        for name, info in (("node-0", INFO), ("node-1", old)):
            item = {**nodes.items["", name], "status": {"nodeInfo": info}}
            item["metadata"] = {**item["metadata"], "labels": LABELS}
            cluster.api.store.write(nodes, ("", name), item, "MODIFIED")
        cluster.api.kubelets["node-0"] = KUBELET
        config = kubeconfig(tmp_path / "config", cluster.api.url, **({"token": token} if token else {}))

        async def told() -> dict[str, list[dict[str, str]]]:
            _, text = await aliquot(cluster, "kube", "doctor", "--kubeconfig", str(config), "--json")
            found: dict[str, list[dict[str, str]]] = {}
            for finding in json.loads(text):
                found.setdefault(finding["subject"], []).append(finding)
            return found

        yield cluster, told


def texts(found: list[dict[str, str]]) -> list[str]:
    return sorted(f"{finding['mark']} {finding['text']}" for finding in found)


def daemon_sets(cluster: KubeCluster, mode: str, injection: str = "cdi") -> None:
    """Our part on the nodes with its settings, and the one by which NVIDIA's operator installs its toolkit."""
    settings = f'[kube_node]\nmode = "{mode}"\ninjection = "{injection}"\nkubelet_cgroup_root = "/"\n'
    store = cluster.api.store
    make_namespace(cluster.api, "aliquot-system")
    config = {"metadata": {"name": "aliquot-agent"}, "data": {"agent.toml": "[agent]\n", "node.toml": settings}}
    store.create(store.kind("v1", "configmaps"), "aliquot-system", config)
    ours = {
        "serviceAccountName": "aliquot-agent",
        "containers": [{"name": "node", "args": ["aliquot-kube-node", "--config", "node.toml"]}],
        "volumes": [{"name": "run", "hostPath": {}}, {"name": "settings", "configMap": {"name": "aliquot-agent"}}],
    }
    theirs = {"containers": [{"name": "toolkit", "image": f"nvcr.io/nvidia/k8s/{TOOLKIT}"}]}
    for name, spec in (("aliquot-agent", ours), ("nvidia-container-toolkit-daemonset", theirs)):
        item = {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
        store.create(store.kind("apps/v1", "daemonsets"), "aliquot-system", item)


async def test_the_doctor_says_what_stands_around_us(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (cluster, told):
        found = await told()
        assert texts(found["kubelet"]) == ["good v1.34.1 (node-1)", "good v1.36.2 (node-0)"]
        assert texts(found["kernel"])[0].startswith("good 6.14.0-24-generic (node-0)")
        assert [finding["mark"] for finding in found["runtime"]] == ["good", "note"]
        assert texts(found["driver"]) == ["good 615.43.02, as its label says (node-0, node-1)"]
        assert texts(found["toolkit"])[0].startswith("note not known")
        assert texts(found["cgroup driver"]) == [
            "good systemd, below / (node-0)",
            "note not known: the API server does not reach its kubelet (node-1)",
        ]
        assert "feature gates" not in found, "without claims none is needed"
        cluster.api.minor = 33
        daemon_sets(cluster, "classic", "mounts")
        found = await told()
        assert {finding["mark"] for finding in found["kubelet"]} == {"bad"}
        assert all("needs nothing" in finding["text"] for finding in found["runtime"])
        assert texts(found["toolkit"]) == [f"good {TOOLKIT} (node-0, node-1)"]


async def test_claims_need_feature_gates_of_the_api_server(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (cluster, told):
        daemon_sets(cluster, "dra")
        found = await told()
        assert texts(found["feature gates"]) == [
            "good DRAConsumableCapacity is on",
            "good DynamicResourceAllocation is on",
        ]
        assert "bad v1.34.1: node.mode=dra needs 1.36 (node-1)" in texts(found["kubelet"])
        cluster.api.gates["DRAConsumableCapacity"] = False
        (bad,) = [finding for finding in (await told())["feature gates"] if finding["mark"] == "bad"]
        assert "DRAConsumableCapacity is switched off" in bad["text"]
        assert "--feature-gates=DRAConsumableCapacity=true" in bad["mend"]
        for plural in ("resourceclaims", "resourceslices", "deviceclasses"):
            del cluster.api.store.kinds["resource.k8s.io/v1", plural]
        (bad,) = (await told())["feature gates"]
        assert bad["text"].startswith("resource.k8s.io/v1 is not served")


async def test_what_its_caller_may_not_read_is_not_known_and_where_to_look_is_said(tmp_path: Path) -> None:
    """Kubelets are asked once where that is refused; the rest is told all the same."""
    async with two_nodes(tmp_path, "reader") as (cluster, told):
        daemon_sets(cluster, "dra")
        everything = ("pods", "nodes", "namespaces", "configmaps", "deployments", "daemonsets", "leases")
        groups = frozenset({"", "apps", "coordination.k8s.io"})
        cluster.api.tokens["reader"] = "reader"
        rule = Rule(groups, frozenset(everything), frozenset({"get", "list"}), frozenset(), "")
        cluster.api.rules["reader"] = (rule,)
        found = await told()
        (cgroups,) = found["cgroup driver"]
        assert (cgroups["mark"], cgroups["text"]) == (
            "note",
            "not known: you may not `get nodes/proxy` (node-0, node-1)",
        )
        assert "/proxy/configz" in cgroups["mend"]
        assert [path for _, path in cluster.api.calls if path.endswith("configz")] == [
            "/api/v1/nodes/node-0/proxy/configz"
        ]
        assert {finding["mark"] for finding in found["feature gates"]} == {"note"}
        assert "kubectl get --raw /metrics | grep DynamicResourceAllocation" in str(found["feature gates"])
        assert found["kubelet"]

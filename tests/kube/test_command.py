"""`aliquot kube doctor` and `aliquot kube plan`, by the command line itself."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.common.errors import ConfigError
from aliquot.kube import planning
from aliquot.kube.api.cluster import from_kubeconfig
from aliquot.kube.core import names
from aliquot.kube.rights import NEEDED
from tests.chart.conftest import documents as chart_documents
from tests.command_line import cli
from tests.kube.cluster import KubeCluster, kube_cluster
from tests.kube.fake_api.policies import VERSION
from tests.kube.fake_api.server import ADMIN
from tests.kube.making import make_namespace, make_pod
from tests.kube.rights import rules_of
from tests.kube.test_admission import documents
from tools import manifests


async def aliquot(cluster: KubeCluster, *arguments: str) -> tuple[int, str]:
    """A command in this process: most of what one of its own takes is what it imports."""
    quiet = logging.getLogger("aliquot.kube.api")  # a command of its own process may silence it for good
    level = quiet.level
    try:
        code, out, _ = await cli(cluster.pool.address, *arguments)
    finally:
        quiet.setLevel(level)
    return code, out


def kubeconfig(path: Path, url: str, token: str = ADMIN) -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_kubeconfig_is_read(tmp_path: Path) -> None:
    found = from_kubeconfig(str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1", "secret")))
    assert (found.url, found.token(), found.namespace) == ("http://127.0.0.1:1", "secret", "mine")
    assert "secret" not in repr(found)


async def test_the_doctor_names_what_is_missing_and_how_to_mend_it(tmp_path: Path) -> None:
    async with kube_cluster(2) as cluster:
        config = kubeconfig(tmp_path / "config", cluster.api.url)
        nodes = cluster.api.store.kind("v1", "nodes")
        for name, allocatable in (
            ("node-0", {names.GPU_PERCENT: "100"}),
            ("node-1", {names.GPU_PERCENT: "100", "nvidia.com/gpu": "8"}),
        ):
            old = nodes.items["", name]
            item = {**old, "metadata": {**old["metadata"]}, "status": {"allocatable": allocatable}}
            cluster.api.store.write(nodes, ("", name), item, "MODIFIED")
        make_pod(cluster.api, "astray", {names.GPU: 1}, spec={"schedulerName": "default-scheduler"}, admit=False)
        code, text = await aliquot(cluster, "kube", "doctor", "--kubeconfig", str(config), "--json")
        assert code == 1
        found: list[dict[str, Any]] = json.loads(text)
        bad = {(one["subject"], one["text"].split(" ")[0].rstrip(":")) for one in found if one["mark"] == "bad"}
        assert bad == {
            ("accounts", "nothing"),
            ("policies", "aliquot-assignments"),
            ("webhook", "aliquot-pods"),
            ("nodes", "node-1"),
            ("controllers", "no"),
            ("pods", "default/astray"),
        }
        assert all(one["mend"] for one in found if one["mark"] == "bad")

        plurals = {"Policy": "policies", "PolicyBinding": "policybindings"}
        for document in documents():
            prefix, _, rest = document["kind"].partition("AdmissionPolicy")
            kind = cluster.api.store.kind(VERSION, f"{prefix.lower()}admission{plurals['Policy' + rest]}")
            cluster.api.store.create(kind, "", document)
        code, text = await aliquot(cluster, "kube", "doctor", "--kubeconfig", str(config))
        assert "aliquot-assignments is in force" in text


def installed(cluster: KubeCluster) -> None:
    """What the chart has that the doctor looks at, with its roles in force; nothing of it runs."""
    kinds = {
        "Deployment": ("apps/v1", "deployments"),
        "DaemonSet": ("apps/v1", "daemonsets"),
        "ValidatingAdmissionPolicy": (VERSION, "validatingadmissionpolicies"),
        "ValidatingAdmissionPolicyBinding": (VERSION, "validatingadmissionpolicybindings"),
    }
    every = chart_documents()
    for each in every:
        if each["kind"] in kinds:
            meta = each["metadata"]
            cluster.api.store.create(cluster.api.store.kind(*kinds[each["kind"]]), meta.get("namespace", ""), each)
    make_namespace(cluster.api, manifests.NAMESPACE)
    for account in ("aliquot-kube", "aliquot-webhook", "aliquot-agent"):
        cluster.api.rules[f"system:serviceaccount:{manifests.NAMESPACE}:{account}"] = rules_of(every, account)


async def accounts(cluster: KubeCluster, config: Path) -> dict[str, list[str]]:
    _, text = await aliquot(cluster, "kube", "doctor", "--kubeconfig", str(config), "--json")
    found: dict[str, list[str]] = {}
    for one in json.loads(text):
        if one["subject"] in ("accounts", "policies"):
            found.setdefault(one["mark"], []).append(one["text"])
    return found


async def test_the_doctor_looks_at_what_our_accounts_may_do(tmp_path: Path) -> None:
    """Not at what its caller may: an administrator may everything."""
    async with kube_cluster(1) as cluster:
        config = kubeconfig(tmp_path / "config", cluster.api.url)
        installed(cluster)
        found = await accounts(cluster, config)
        assert sorted(text.split("`")[1] for text in found["good"] if "may do what" in text) == sorted(NEEDED)
        assert not any("may not" in text for text in found.get("bad", ()))
        user = f"system:serviceaccount:{manifests.NAMESPACE}:aliquot-kube"
        cluster.api.rules[user] = tuple(
            rule._replace(resources=rule.resources - {"services", "pods/binding"}) for rule in cluster.api.rules[user]
        )
        bad = " ".join((await accounts(cluster, config))["bad"])
        assert "of `aliquot-kube controllers` may not: create services" in bad
        assert "of `aliquot-kube extender` may not: create pods/binding" in bad


async def test_the_doctor_sees_a_namespace_whose_pod_security_refuses_agents(tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        config = kubeconfig(tmp_path / "config", cluster.api.url)
        installed(cluster)
        namespaces = cluster.api.store.kind("v1", "namespaces")
        for level in ("", "privileged", "baseline", "restricted"):
            labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
            item = {"metadata": {"name": manifests.NAMESPACE, "labels": labels}}
            cluster.api.store.write(namespaces, ("", manifests.NAMESPACE), item, "MODIFIED")
            bad = [text for text in (await accounts(cluster, config)).get("bad", ()) if "Pod Security" in text]
            assert bad == [f"Pod Security in {manifests.NAMESPACE} is {level}: it refuses agents"] * (
                level in ("baseline", "restricted")
            )


async def test_the_doctor_sees_a_policy_that_is_about_another_account(tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        config = kubeconfig(tmp_path / "config", cluster.api.url)
        installed(cluster)
        deployments = cluster.api.store.kind("apps/v1", "deployments")
        for key, item in list(deployments.items.items()):
            spec = item["spec"]["template"]["spec"]
            if spec.get("serviceAccountName") == "aliquot-kube":
                changed = {**spec, "serviceAccountName": "somebody"}
                whole = {**item, "metadata": {**item["metadata"]}, "spec": {"template": {"spec": changed}}}
                cluster.api.store.write(deployments, key, whole, "MODIFIED")
        bad = " ".join((await accounts(cluster, config))["bad"])
        assert (
            f"aliquot-assignments is about another account than system:serviceaccount:{manifests.NAMESPACE}:somebody"
            in bad
        )


def test_a_version_that_kubernetes_took_back_is_refused_with_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "group.yaml"
    group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}}
    file.write_text(yaml.safe_dump({"kind": "List", "items": [group]}))
    with pytest.raises(ConfigError, match=r"PodGroup of scheduling\.k8s\.io/v1alpha2") as caught:
        planning.read([file])
    assert "scheduling.k8s.io/v1beta1" in caught.value.hint
    file.write_text(yaml.safe_dump({**group, "apiVersion": "scheduling.k8s.io/v1beta1"}))
    assert len(planning.read([file])) == 1


async def test_what_would_become_of_manifests(tmp_path: Path) -> None:
    def container(percent: int) -> dict[str, Any]:
        return {"name": "c", "resources": {"limits": {names.GPU_PERCENT: percent}}}

    job = {
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"parallelism": 2, "template": {"spec": {"containers": [container(50)]}}},
    }
    jobset = {
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": "ml"},
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": job["spec"]}}]},
    }
    gang = {
        "kind": "Pod",
        "metadata": {"name": "g", "labels": {names.GANG: "g"}, "annotations": {names.GANG_SIZE: "3"}},
        "spec": {"containers": [container(100)]},
    }
    web = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [{}]}}}}
    file = tmp_path / "job.yaml"
    async with kube_cluster(2) as cluster:
        file.write_text(yaml.safe_dump_all([job, jobset, web]))
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file), "--json")
        first, second, third = json.loads(text)
        assert code == 0
        assert (first["count"], first["request"], first["fits_now"]) == (2, "0.5", True)
        assert (second["where"], second["count"]) == ("JobSet ml/set workers", 4)
        assert third["request"] == ""
        file.write_text(yaml.safe_dump(gang))
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file))
        assert code == 4
        assert "as a gang can never start" in text
        assert not await cluster.leases()


async def test_a_plan_counts_knows_every_way_of_asking_and_goes_on_after_what_can_not_be_read(tmp_path: Path) -> None:
    def pods(name: str, replicas: int, limits: dict[str, Any]) -> dict[str, Any]:
        spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
        return {
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "template": {"spec": spec}},
        }

    claim = {
        "exactly": {"deviceClassName": "gpu.aliquot.dev", "capacity": {"requests": {"percent": "25", "memory": "8Gi"}}}
    }
    manifests = [
        pods("many", 1000, {names.GPU: 1}),
        pods("odd", 1, {names.GPU_PERCENT: 150}),
        pods("torn", 1, {names.GPU: [1]}),
        {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "quarter"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", **claim}]}}},
        },
        {
            "kind": "Pod",
            "metadata": {"name": "claims"},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}], "containers": [{}]},
        },
        {
            "kind": "Pod",
            "metadata": {
                "name": "far",
                "labels": {"aliquot.dev/remote-secret": "s"},
                "annotations": {"aliquot.dev/remote": "0.25,10Gi"},
            },
            "spec": {"containers": [{}]},
        },
        {
            "kind": "ElasticJob",
            "metadata": {"name": "train"},
            "spec": {"scaling": {"minReplicas": 2, "maxReplicas": 9}, "template": {"spec": {"containers": [{}]}}},
        },
    ]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    async with kube_cluster(3) as cluster:
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file), "--json")
        assert code == 4, "something never can"
        found = {one["where"]: one for one in json.loads(text)}
        many = found["Deployment default/many"]
        assert (many["count"], many["starting"], many["fits_now"]) == (1000, 3, False)
        assert "more than one GPU is asked for in whole GPUs" in found["Deployment default/odd"]["problem"]
        assert "it can't be read" in found["Deployment default/torn"]["problem"]
        claimed = found["Pod default/claims"]
        assert (claimed["request"], claimed["fits_now"]) == ("0.25,8Gi", True)
        assert found["Pod default/far"]["request"] == "0.25,10Gi"
        train = found["ElasticJob default/train"]
        assert (train["request"], train["count"], train["gang"], train["fits_now"]) == ("1", 2, True, True)
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file))
        assert "Deployment default/many: 3 of 1000 x 1 would start now, the others would wait" in text
        assert "Deployment default/odd: 150 percent" in text
        file.write_text(yaml.safe_dump(manifests[0]))
        assert (await aliquot(cluster, "kube", "plan", "-f", str(file)))[0] == 5

"""The chart on every Kubernetes that it is for, and over what its first version has left behind."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import FULL, Documents, documents
from tools import manifests

FIRST = Path(__file__).with_name("first")
"""The first version's values, and what objects of it can't be changed by an upgrade."""
VERSIONS = [manifests.OLDEST, "1.33.0", manifests.NEWEST, "1.37.0"]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": FULL,
    "agents only": {"coordinator": {"enabled": False}, "kube": {"enabled": False}, "node": {"enabled": False}},
    "without policies": {"networkPolicy": {"enabled": False}, "priorityClasses": [], "podDisruptionBudgets": False},
    **{
        f"profile {path.stem}": yaml.safe_load(path.read_text())
        for path in sorted((manifests.CHART / "profiles").glob("*.yaml"))
    },
}
POSTGRES: dict[str, Any] = {
    "coordinator": {
        "replicas": 3,
        "journal": {
            "type": "postgres",
            "postgres": {"dsn": "host=db dbname=aliquot user=aliquot", "passwordSecret": {"name": "db"}},
        },
    },
    "kube": {"replicas": 2},
}


def minor(version: str) -> int:
    return int(version.split(".")[1])


def taken(found: Documents, version: str) -> None:
    """By the schemas of that version, without a field that it does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate = pytest.importorskip(
            "kubernetes_validate", reason="needs kubernetes-validate: pip install 'aliquot[dev]'"
        )
        for each in found:
            # Kinds of Prometheus' operator are not Kubernetes' own.
            if each["kind"] not in ("PodMonitor", "PrometheusRule"):
                validate.validate(each, ".".join(version.split(".")[:2]), strict=True)


def there(found: Documents, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in found if each["kind"] == kind]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda name: name.replace(" ", "-"))
def test_kubernetes_takes_what_is_rendered_for_it(variant: str, version: str) -> None:
    found = documents(VARIANTS[variant], version)
    taken(found, version)
    webhook = "kube" not in VARIANTS[variant] or VARIANTS[variant]["kube"].get("enabled", True)
    assert there(found, "MutatingWebhookConfiguration") == (["aliquot-pods"] if webhook else [])


def test_the_oldest_that_it_is_for_is_said_by_the_chart() -> None:
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={manifests.OLDEST}-0"


@pytest.mark.parametrize(("enabled", "version", "expected"), [("auto", "1.36.2", 1), (False, "1.30.0", 0)])
def test_who_says_so_has_the_webhook_or_not(enabled: bool | str, version: str, expected: int) -> None:
    assert len(there(documents({"webhook": {"enabled": enabled}}, version), "MutatingWebhookConfiguration")) == expected


@pytest.mark.parametrize(
    ("version", "tag", "expected"),
    [
        ("1.30.0", "", "v1.30.0"),
        ("v1.33.5-gke.1014001", "", "v1.33.5"),
        ("v1.34.2+k3s1", "", "v1.34.2"),
        ("1.36.2", "v1.35.7", "v1.35.7"),
    ],
)
def test_the_scheduler_is_of_the_clusters_own_version(version: str, tag: str, expected: str) -> None:
    found = documents({"kube": {"scheduler": {"tag": tag}}} if tag else {}, version)
    (scheduler,) = [
        container["image"]
        for each in found
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
        if container["name"] == "scheduler"
    ]
    assert scheduler == f"registry.k8s.io/kube-scheduler:{expected}"


def test_claims_are_refused_where_kubernetes_has_no_shared_capacity() -> None:
    claims = {"node": {"mode": "dra"}}
    taken(documents(claims, "1.36.0"), "1.36.0")
    with pytest.raises(Exception, match=r"node.mode=dra needs Kubernetes 1.36.*v1.35.4.*set node.mode=classic"):
        documents(claims, "1.35.4")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_applied_beside_the_chart_is_taken_as_far_as_its_comments_say(version: str) -> None:
    folder = manifests.REPOSITORY / "deploy" / "kube"
    found = [
        each for name in ("crds.yaml", "admission.yaml") for each in yaml.safe_load_all((folder / name).read_text())
    ]
    taken(found, version)


@pytest.mark.parametrize(("release", "more"), [("default", {}), ("postgres", POSTGRES)])
@pytest.mark.parametrize("version", [manifests.OLDEST, manifests.NEWEST])
def test_a_release_of_the_first_version_is_upgraded(release: str, more: dict[str, Any], version: str) -> None:
    """With all values of that version, as who has copied the whole file, and what can't change has not."""
    values = yaml.safe_load((FIRST / "values.yaml").read_text())
    found = documents(merged(values, more), version)
    taken(found, version)
    before = yaml.safe_load((FIRST / "unchangeable.yaml").read_text())
    fixed = {**before["postgres"], **before["default"]} if release == "default" else before["postgres"]
    now = {f"{each['kind']}/{each['metadata'].get('namespace', '')}/{each['metadata']['name']}": each for each in found}
    assert fixed.keys() <= now.keys()
    for name, fields in fixed.items():
        for field, value in fields.items():
            where = now[name]["spec"] if name.split("/")[0] in {"Service", *WORKLOADS} else now[name]
            assert where.get(field, type(value)()) == value, f"{name}: {field} can't be changed"


WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet")


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays values over one another."""
    found = dict(values)
    for name, value in more.items():
        found[name] = merged(found.get(name, {}), value) if isinstance(value, dict) else value
    return found
